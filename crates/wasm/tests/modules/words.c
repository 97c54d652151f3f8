/* Counts the words of a value, and prints the number. The argument is the key. */
#include "skytether_wasm.h"

static int fail(const char *message, st_u32 length, int code)
{
	st_print(message, length);
	return code;
}

ST_MAIN
{
	char key[1024], digits[20];
	st_u32 length, words = 0, at = sizeof digits;
	st_i64 key_length = st_arg(0, key, sizeof key);
	if (key_length < 0 || key_length > (st_i64)sizeof key)
		return fail("no argument\n", 12, 2);
	const char *text = st_value(key, (st_u32)key_length, &length);
	if (!text)
		return fail("no such key\n", 12, 1);
	int within = 0;
	for (st_u32 i = 0; i < length; i++) {
		int space = text[i] == ' ' || text[i] == '\n' || text[i] == '\t';
		words += !space && !within;
		within = !space;
	}
	st_u32 rest = words;
	do {
		digits[--at] = '0' + rest % 10;
		rest /= 10;
	} while (rest);
	st_print(digits + at, sizeof digits - at);
	st_print("\n", 1);
	return 0;
}
