/* The same as scan.c, by the bulk helper. */
#include "skytether_ebpf.h"

int main(void)
{
	st_u64 key_length, length, constant_length, count;
	const void *key = st_arg(0, &key_length);
	const st_u32 *constant = st_arg(1, &constant_length);
	const char *value = st_get(key, key_length, &length);
	if (!value)
		return 1;
	struct st_column column = { value, length / 48, 48, 20, ST_U32, 0 };
	count = st_count(&column, ST_GT, *constant);
	st_emit(&count, sizeof count);
	return 0;
}
