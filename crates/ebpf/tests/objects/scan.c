/* Counts the records whose field (an unsigned 32-bit integer at byte 20 of 48) is above the constant of the second
 * argument, record by record: the measurement compares it with the bulk helper. The first argument is the key. */
#include "skytether_ebpf.h"

int main(void)
{
	st_u64 key_length, length, constant_length, count = 0;
	const void *key = st_arg(0, &key_length);
	const st_u32 *constant = st_arg(1, &constant_length);
	const char *value = st_get(key, key_length, &length);
	if (!value)
		return 1;
	st_u32 above = *constant;
	const char *end = value + length;
	for (const char *record = value; record < end; record += 48)
		count += *(const st_u32 *)(record + 20) > above;
	st_emit(&count, sizeof count);
	return 0;
}
