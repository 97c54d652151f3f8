/* An atomic operation. */
static int count;

int main(void) { return __sync_fetch_and_add(&count, 1); }
