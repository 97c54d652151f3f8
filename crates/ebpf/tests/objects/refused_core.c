/* A field whose offset a kernel has to fill in (CO-RE). Compile with -g. */
struct task { int before; int id; } __attribute__((preserve_access_index));

int id(struct task *task) { return task->id; }
