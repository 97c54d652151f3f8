/* A function that is defined elsewhere. */
extern int elsewhere(void);

int main(void) { return elsewhere(); }
