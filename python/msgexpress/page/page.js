// Sorting and search of the tables of marker genes. Without it the page reads the same, only without these two.
"use strict";
(function () {
  const tools = document.getElementById("tools");
  if (!tools) return;
  tools.hidden = false;
  const search = document.getElementById("search");
  const group = document.getElementById("group");
  const found = document.getElementById("found");
  const articles = Array.from(document.querySelectorAll("article[data-group]"));
  const rows = articles.map((article) => Array.from(article.querySelectorAll("tbody tr")));
  const total = rows.reduce((sum, some) => sum + some.length, 0);

  function filter() {
    const words = search.value.toLowerCase().split(/[\s,;]+/).filter(Boolean);
    let shown = 0;
    articles.forEach((article, at) => {
      const chosen = group.value === "" || group.value === String(at);
      let here = 0;
      for (const row of rows[at]) {
        const name = row.cells[0].textContent.toLowerCase();
        const fits = words.length === 0 || words.some((word) => name.includes(word));
        row.hidden = !fits;
        if (fits && chosen) here += 1;
      }
      article.hidden = !chosen || (words.length > 0 && here === 0);
      shown += here;
    });
    const number = (n) => n.toLocaleString("en");
    found.textContent = shown === total ? number(total) + " rows" : number(shown) + " of " + number(total) + " rows";
  }

  function value(row, column) {
    const cell = row.cells[column];
    if (!("v" in cell.dataset)) return cell.textContent;
    return cell.dataset.v === "" ? NaN : Number(cell.dataset.v);
  }

  function compare(a, b, way) {
    if (typeof a === "string") return way * a.localeCompare(b, "en", { numeric: true });
    // What has no value is last, whichever way.
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    return a === b ? 0 : way * (a < b ? -1 : 1);
  }

  function sort(head) {
    const table = head.closest("table");
    const column = head.cellIndex;
    const first = head.dataset.first === "ascending" ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const way = head.getAttribute("aria-sort") === first ? other : first;
    for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", way);
    const body = table.tBodies[0];
    const sign = way === "ascending" ? 1 : -1;
    const ordered = Array.from(body.rows).map((row, at) => [value(row, column), at, row]);
    ordered.sort((a, b) => compare(a[0], b[0], sign) || a[1] - b[1]);
    body.append(...ordered.map((entry) => entry[2]));
  }

  for (const head of document.querySelectorAll("article[data-group] th")) {
    head.setAttribute("role", "button");
    head.tabIndex = 0;
    head.title = "sort by this column";
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort(head);
      }
    });
  }
  search.addEventListener("input", filter);
  group.addEventListener("change", filter);
  filter();
})();
