/* Variables that are larger than any program may have. */
static char large[1 << 30];

int main(void) { return ((volatile char *)large)[5]; }
