/* What 32-bit arithmetic, division, shifts and byte order give. Emits 64-bit numbers; the first argument has the two
 * operands, so that the compiler computes nothing. */
#include "skytether_ebpf.h"

static __attribute__((noinline)) st_u32 add(st_u32 a, st_u32 b) { return a + b; }
static __attribute__((noinline)) st_u32 subtract(st_u32 a, st_u32 b) { return a - b; }
static __attribute__((noinline)) st_u32 multiply(st_u32 a, st_u32 b) { return a * b; }

int main(void)
{
	st_u64 length;
	const st_u32 *operands = st_arg(0, &length);
	st_u32 a = operands[0], b = operands[1];
	volatile st_u64 results[10];
	results[0] = add(a, b);
	results[1] = subtract(a, b);
	results[2] = multiply(a, b);
	results[3] = (st_u64)(a + 5u);
	results[4] = (st_u64)(a - 7u);
	results[5] = b ? a / b : 0;
	results[6] = b ? a % b : 0;
	results[7] = (st_u64)(st_i64)((st_i32)a >> (b & 31));
	results[8] = (st_u64)(a << (b & 31));
	results[9] = __builtin_bswap32(a);
	st_emit((const void *)results, sizeof results);
	return 0;
}
