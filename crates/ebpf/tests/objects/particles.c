/* Emits the particles whose energy is above a threshold, of all values whose keys begin with a prefix. Arguments: the
 * prefix, the threshold (a double). Records have 48 bytes; the energy is the float at byte 44. */
#include "skytether_ebpf.h"

static char key[256];

int main(void)
{
	st_u64 prefix_length, threshold_length, length;
	const char *prefix = st_arg(0, &prefix_length);
	const st_u64 *threshold = st_arg(1, &threshold_length);
	st_u64 key_length = prefix_length;
	if (!prefix || !threshold || prefix_length > sizeof key || threshold_length != 8)
		return 2;
	st_copy(key, prefix, prefix_length);
	for (;;) {
		key_length = st_next(key, key_length, key, sizeof key);
		if (key_length == ST_NONE || key_length < prefix_length || key_length > sizeof key)
			break;
		if (st_compare(key, prefix_length, prefix, prefix_length))
			break;
		const void *value = st_get(key, key_length, &length);
		if (!value)
			return 1;
		struct st_column energy = { value, length / 48, 48, 44, ST_F32, 0 };
		void *bitmap = st_alloc(ST_BITMAP_LENGTH(energy.count));
		if (st_select(&energy, ST_GT, *threshold, bitmap, ST_SET))
			st_emit_selected(&energy, bitmap);
		st_release(bitmap);
		st_release(value);
	}
	return 0;
}
