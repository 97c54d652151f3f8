/* Notes what a watch tells: puts the last argument under the first one, "/" and the last but one. */
#include "skytether_ebpf.h"

int main(void)
{
	char key[256];
	st_u64 count = st_arg_count(), prefix_length, length, kind_length;
	if (count < 3)
		return 2;
	const void *prefix = st_arg(0, &prefix_length);
	const void *changed = st_arg(count - 2, &length);
	const void *kind = st_arg(count - 1, &kind_length);
	if (prefix_length + 1 + length > sizeof key)
		return 3;
	st_copy(key, prefix, prefix_length);
	st_copy(key + prefix_length, "/", 1);
	st_copy(key + prefix_length + 1, changed, length);
	st_put(key, prefix_length + 1 + length, kind, kind_length);
	st_print(kind, kind_length);
	return 0;
}
