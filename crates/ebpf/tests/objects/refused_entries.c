/* Two global functions, and neither is named main: the loader can't choose one. */
int one(void) { return 1; }
int two(void) { return 2; }
