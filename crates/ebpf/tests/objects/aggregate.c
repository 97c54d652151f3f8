/* Count, sum, minimum and maximum of a column of 32-bit integers over all values whose keys begin with a prefix (the
 * argument). Emits one struct st_aggregate. */
#include "skytether_ebpf.h"

static struct st_aggregate total;
static char key[256];

static __attribute__((noinline)) void add(const struct st_aggregate *some)
{
	if (!some->count)
		return;
	if (!total.count || (st_i64)some->min < (st_i64)total.min)
		total.min = some->min;
	if (!total.count || (st_i64)some->max > (st_i64)total.max)
		total.max = some->max;
	total.count += some->count;
	total.sum += some->sum;
	total.overflow |= some->overflow;
}

int main(void)
{
	static const char message[] = "no keys\n";
	st_u64 prefix_length, length;
	const char *prefix = st_arg(0, &prefix_length);
	st_u64 key_length = prefix_length;
	int values = 0;
	if (!prefix || prefix_length > sizeof key)
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
		struct st_column column = { value, length / 4, 4, 0, ST_I32, 0 };
		struct st_aggregate some;
		st_aggregate(&column, 0, &some);
		add(&some);
		st_release(value);
		values++;
	}
	if (!values) {
		st_print(message, sizeof message - 1);
		return 1;
	}
	st_emit(&total, sizeof total);
	return 0;
}
