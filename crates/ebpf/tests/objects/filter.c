/* Emits the records of a value whose energy is above a threshold. Arguments: the key, the threshold (a double).
 * Records have 48 bytes; the energy is the float at byte 44. */
#include "skytether_ebpf.h"

int filter(st_u64 arguments)
{
	if (arguments != 2)
		return 2;
	st_u64 key_length, length, threshold_length;
	const void *key = st_arg(0, &key_length);
	const st_u64 *threshold = st_arg(1, &threshold_length);
	const void *value = st_get(key, key_length, &length);
	if (!value || threshold_length != 8)
		return 1;
	struct st_column energy = { value, length / 48, 48, 44, ST_F32, 0 };
	void *bitmap = st_alloc(ST_BITMAP_LENGTH(energy.count));
	st_select(&energy, ST_GT, *threshold, bitmap, ST_SET);
	st_emit_selected(&energy, bitmap);
	return 0;
}
