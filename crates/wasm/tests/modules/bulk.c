/* The same as scan.c, by the bulk import. */
#include "skytether_wasm.h"

ST_MAIN
{
	char key[1024];
	st_u64 count = 0;
	st_u32 above;
	st_i64 key_length = st_arg(0, key, sizeof key);
	if (key_length < 0 || key_length > (st_i64)sizeof key || st_arg(1, &above, 4) != 4)
		return 2;
	st_i64 length = st_get(key, (st_u32)key_length, 0, 0);
	if (length < 0)
		return 1;
	struct st_column column = { .of = ST_VALUE, .count = length / 48, .stride = 48, .offset = 20, .type = ST_U32 };
	count = st_count(&column, ST_GT, above);
	st_emit(&count, sizeof count);
	return 0;
}
