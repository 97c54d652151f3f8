/* Counts the words of a value, and prints the number. The argument is the key. */
#include "skytether_ebpf.h"

static const char *const messages[] = { "no such key\n", "no argument\n" };

static __attribute__((noinline)) int fail(int which)
{
	st_print(messages[which], 12);
	return which + 1;
}

int main(void)
{
	char digits[20];
	st_u64 key_length, length, words = 0, at = sizeof digits;
	if (!st_arg_count())
		return fail(1);
	const void *key = st_arg(0, &key_length);
	const char *text = st_get(key, key_length, &length);
	if (!text)
		return fail(0);
	int within = 0;
	for (st_u64 i = 0; i < length; i++) {
		int space = text[i] == ' ' || text[i] == '\n' || text[i] == '\t';
		words += !space && !within;
		within = !space;
	}
	st_u64 rest = words;
	do {
		digits[--at] = '0' + rest % 10;
		rest /= 10;
	} while (rest);
	st_print(digits + at, sizeof digits - at);
	st_print("\n", 1);
	return 0;
}
