/* Counts the records whose field (an unsigned 32-bit integer at byte 20 of 48) is above the constant of the second
 * argument, record by record: the measurement compares it with the bulk import. The first argument is the key. */
#include "skytether_wasm.h"

/* A piece of the value: reading it so takes less memory than a copy of all. */
static _Alignas(8) char records[48 * 1024];

ST_MAIN
{
	char key[1024];
	st_u64 count = 0;
	st_u32 above;
	st_i64 key_length = st_arg(0, key, sizeof key);
	if (key_length < 0 || key_length > (st_i64)sizeof key || st_arg(1, &above, 4) != 4)
		return 2;
	if (st_get(key, (st_u32)key_length, 0, 0) < 0)
		return 1;
	st_i64 length;
	for (st_u64 offset = 0; (length = st_read(offset, records, sizeof records)) > 0; offset += sizeof records)
		for (const char *record = records, *end = records + length / 48 * 48; record < end; record += 48)
			count += *(const st_u32 *)(record + 20) > above;
	st_emit(&count, sizeof count);
	return 0;
}
