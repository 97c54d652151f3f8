/* A variable that is defined elsewhere. */
extern int elsewhere;

int main(void) { return elsewhere; }
