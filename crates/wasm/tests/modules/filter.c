/* Emits the records of a value whose energy is above a threshold. Arguments: the key, the threshold (a double).
 * Records have 48 bytes; the energy is the float at byte 44. */
#include "skytether_wasm.h"

ST_MAIN
{
	char key[1024];
	st_u64 threshold;
	st_i64 key_length = st_arg(0, key, sizeof key);
	if (key_length < 0 || key_length > (st_i64)sizeof key || st_arg(1, &threshold, 8) != 8)
		return 2;
	st_i64 length = st_get(key, (st_u32)key_length, 0, 0);
	if (length < 0)
		return 1;
	struct st_column energy = { .of = ST_VALUE, .count = length / 48, .stride = 48, .offset = 44, .type = ST_F32 };
	void *bitmap = st_alloc((st_u32)ST_BITMAP_LENGTH(length / 48));
	if (!bitmap)
		return 3;
	st_select(&energy, ST_GT, threshold, bitmap, ST_SET);
	st_emit_selected(&energy, bitmap);
	return 0;
}
