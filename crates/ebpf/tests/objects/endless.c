/* Asks the drive for keys for ever: it ends by its limits, or because somebody aborts it. */
#include "skytether_ebpf.h"

int main(void)
{
	char key[64];
	for (;;)
		st_next("a", 1, key, sizeof key);
}
