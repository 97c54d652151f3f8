/* A map, as kernels have them. */
struct { int (*type)[1]; int (*max_entries)[8]; } counts __attribute__((section(".maps"), used));

int main(void) { return 0; }
