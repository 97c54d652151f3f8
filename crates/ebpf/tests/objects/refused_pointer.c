/* A function that is called through a pointer. */
static int one(void) { return 1; }
static int two(void) { return 2; }
int (*volatile function)(void);

int pointer(int argument)
{
	function = argument ? one : two;
	return function();
}
