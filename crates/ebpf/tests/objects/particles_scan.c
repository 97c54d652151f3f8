/* The same as particles.c, record by record. The bits of positive floats have the order of their values, and no energy
 * is negative. */
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
	st_u32 above = st_float(ST_TO_FLOAT, *threshold, 0);
	st_copy(key, prefix, prefix_length);
	for (;;) {
		key_length = st_next(key, key_length, key, sizeof key);
		if (key_length == ST_NONE || key_length < prefix_length || key_length > sizeof key)
			break;
		if (st_compare(key, prefix_length, prefix, prefix_length))
			break;
		const char *value = st_get(key, key_length, &length);
		if (!value)
			return 1;
		const char *end = value + length / 48 * 48;
		for (const char *record = value; record < end; record += 48)
			if (*(const st_u32 *)(record + 44) > above)
				st_emit(record, 48);
		st_release(value);
	}
	return 0;
}
