/* The same as particles.c, record by record. eBPF has no floating point, so floats are compared as integers: see
 * `ordered`. */
#include "skytether_ebpf.h"

static char key[256];

#define INFINITE 0x7f800000

/* Integers in the order of the floats with these bits. Those of no number are above INFINITE or below the lowest. */
static int ordered(st_u32 bits)
{
	return (int)(bits ^ ((int)bits >> 31 & 0x7fffffff));
}

/* A float is above the threshold (a double) if `ordered` of it is above this. */
static int limit(st_u64 threshold)
{
	if (!st_float(ST_SAME, threshold, threshold))
		return INFINITE;
	st_u32 nearest = st_float(ST_TO_FLOAT, threshold, 0);
	if (st_float(ST_LESS, threshold, st_float(ST_FROM_FLOAT, nearest, 0)))
		return ordered(nearest) - 1;
	/* Both zeros are equal. */
	return nearest == 0x80000000 ? 0 : ordered(nearest);
}

int main(void)
{
	st_u64 prefix_length, threshold_length, length;
	const char *prefix = st_arg(0, &prefix_length);
	const st_u64 *threshold = st_arg(1, &threshold_length);
	st_u64 key_length = prefix_length;
	if (!prefix || !threshold || prefix_length > sizeof key || threshold_length != 8)
		return 2;
	int above = limit(*threshold);
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
		for (const char *record = value; record < end; record += 48) {
			int energy = ordered(*(const st_u32 *)(record + 44));
			if (energy > above && energy <= INFINITE)
				st_emit(record, 48);
		}
		st_release(value);
	}
	return 0;
}
