/* A function in a section of its own. */
__attribute__((section("program"))) int main(void) { return 0; }
