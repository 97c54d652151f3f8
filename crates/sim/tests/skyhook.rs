//! Skyhook's experiments; the first with fewer slices than `cargo run -p skytether-sim --bin regret clocks` has.

use skytether_sim::grid::Scenario;
use skytether_sim::skyhook::{CLIENT_MHZ, GBIT, MHZ, SERVERS, SLICES, clocks, enough, links};

#[test]
fn the_more_servers_the_slower_they_may_be() {
    let rows = clocks(&SERVERS, &MHZ, &Scenario { slices: 400, ..Scenario::default() });
    assert_eq!(rows.len(), SERVERS.len() * MHZ.len());
    for of in SERVERS {
        let mut of: Vec<_> = rows.iter().filter(|row| row.servers == of).collect();
        of.sort_by(|a, b| b.mhz.total_cmp(&a.mhz));
        for pair in of.windows(2) {
            assert!(pair[1].full >= 0.98 * pair[0].full, "slower processors are not quicker: {pair:?}");
            assert!(pair[1].adaptive <= pair[1].full.min(pair[1].client) * 1.1, "{pair:?}");
        }
    }
    let least = SERVERS.map(|servers| enough(&rows, servers, 0.05).unwrap());
    // One server has to be as fast as the client; of eight an eighth is enough, of sixteen a sixteenth,
    // and twice that in any case.
    assert!(least[0] >= 0.8 * CLIENT_MHZ, "{least:?}");
    for (servers, least) in SERVERS.into_iter().zip(least).skip(1) {
        assert!(least <= 2.0 * CLIENT_MHZ / f64::from(servers), "{servers} servers: {least} MHz");
        assert!(least < 800.0, "below what the paper needed");
    }
    assert!(least[2] < least[1] && least[1] < least[0], "{least:?}");
}

#[test]
fn half_of_the_network_costs_no_more_than_twice_the_time() {
    let rows = links(&GBIT, &Scenario { slices: SLICES, ..Scenario::default() });
    for pair in rows.windows(2) {
        let ((wide, before), (thin, after)) = (pair[0], pair[1]);
        // Only transfers take longer; a tenth is for slices under way when the change is noticed.
        let most = wide / thin * 1.1;
        for (before, after) in [(before.servers, after.servers), (before.adaptive, after.adaptive), (before.client, after.client)] {
            assert!(after <= before * most && after >= 0.98 * before, "{wide} to {thin} Gb/s: {before} to {after} s");
        }
        assert!(after.adaptive <= after.servers.min(after.client) * 1.15, "{thin} Gb/s: {after:?}");
    }
    let (_, whole) = rows[0];
    let (gbit, half) = rows[1];
    assert_eq!(gbit, 5.0);
    assert!(half.servers <= 1.1 * whole.servers && half.adaptive <= 1.2 * whole.adaptive, "1% of the rows fit the thinner network as well: {whole:?} {half:?}");
}

#[test]
fn documented_figures_equal_the_simulated_ones() {
    let text = include_str!("../../../docs/figures.md");
    let digits = |value: f64| {
        if value >= 100.0 {
            format!("{value:.0}")
        } else if value >= 10.0 {
            format!("{value:.1}")
        } else {
            format!("{value:.2}")
        }
    };
    for (gbit, times) in links(&GBIT, &Scenario { slices: SLICES, ..Scenario::default() }) {
        let row = format!("| {gbit} | {} | {} | {} |", digits(times.client), digits(times.servers), digits(times.adaptive));
        assert!(text.contains(&row), "docs/figures.md does not say {row}: run `regret links` and write what it says there");
    }
}
