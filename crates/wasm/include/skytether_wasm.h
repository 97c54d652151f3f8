/* Imports of WebAssembly programs that run inside a Skytether drive.
 *
 * Compile with:  clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry -Wl,-z,stack-size=65536 program.c -I include
 * -o program.wasm     (Debian: clang and lld)
 *
 * The program is `ST_MAIN { ... }`; what it returns is its exit code. There is no WASI and no C library: no files, no
 * clock, no environment. Memory is the program's own, 64 MiB at most. An access beyond it ends the program, and so do
 * arguments of imports that make no sense, calls that the drive refuses, and the limits of the run. Each instruction
 * counts, and imports charge for their work: 20 a call, 1 for each record or for each 8 bytes, 1000 for a call of the
 * drive. Calls may be nested 1000 deep. Each run begins with new memory.
 */
#ifndef SKYTETHER_WASM_H
#define SKYTETHER_WASM_H

typedef unsigned char st_u8;
typedef unsigned short st_u16;
typedef unsigned int st_u32;
typedef unsigned long long st_u64;
typedef signed char st_i8;
typedef short st_i16;
typedef int st_i32;
typedef long long st_i64;

#define ST_MAIN __attribute__((export_name("main"))) int st_main(void)
#define ST_IMPORT(name) __attribute__((import_module("skytether"), import_name(name))) extern

/* "Nothing found", where a result is a length. */
#define ST_NONE ((st_i64)-1)

/* ---- Values ----
 * What is copied to `to` is cut off after `room` bytes; the result is the whole length, or ST_NONE. */

/* Copies the value of a key. The drive keeps it at hand for st_read until the next st_get. */
ST_IMPORT("get") st_i64 st_get(const void *key, st_u32 key_length, void *to, st_u32 room);
/* Copies bytes of the value that st_get found last, from `offset` on, and gives how many. */
ST_IMPORT("read") st_i64 st_read(st_u64 offset, void *to, st_u32 room);
/* Copies the first key after `after`. */
ST_IMPORT("next") st_i64 st_next(const void *after, st_u32 after_length, void *to, st_u32 room);
/* Stores a value. */
ST_IMPORT("put") void st_put(const void *key, st_u32 key_length, const void *value, st_u32 length);

/* ---- Output, arguments ---- */

/* Appends to the output. */
ST_IMPORT("emit") void st_emit(const void *from, st_u32 length);
/* Appends to the standard output, which people read. */
ST_IMPORT("print") void st_print(const void *from, st_u32 length);
/* The number of arguments. */
ST_IMPORT("arg_count") st_u32 st_arg_count(void);
/* Copies an argument. The first has the index 0. */
ST_IMPORT("arg") st_i64 st_arg(st_u32 index, void *to, st_u32 room);
/* How many instructions are left. */
ST_IMPORT("remaining") st_u64 st_remaining(void);

/* ---- Memory ---- */

extern st_u8 __heap_base;

/* Memory of zeros, aligned to 16 bytes, which nothing gives back before the program ends; 0 if there is no more. */
static inline void *st_alloc(st_u32 length)
{
	static st_u32 used;
	const st_u32 page = 65536, most = 1024;
	st_u32 from = used ? used : ((st_u32)&__heap_base + 15) & ~15u, end = from + ((length + 15) & ~15u);
	if (length > page * most || end < from)
		return 0;
	st_u32 pages = (end + page - 1) / page, has = __builtin_wasm_memory_size(0);
	if (pages > has && __builtin_wasm_memory_grow(0, pages - has) == (unsigned long)-1)
		return 0;
	used = end;
	return (void *)from;
}

/* The whole value of a key, in memory of st_alloc, and its length; 0 if there is none, or no memory for it. */
static inline void *st_value(const void *key, st_u32 key_length, st_u32 *length)
{
	st_i64 found = st_get(key, key_length, 0, 0);
	void *to = found == ST_NONE || found > 0x7fffffff ? 0 : st_alloc((st_u32)found);
	*length = to ? (st_u32)st_read(0, to, (st_u32)found) : 0;
	return to;
}

/* ---- Records: one field of many records of a fixed size, all little-endian, as for eBPF programs ---- */

#define ST_I8 1
#define ST_U8 2
#define ST_I16 3
#define ST_U16 4
#define ST_I32 5
#define ST_U32 6
#define ST_I64 7
#define ST_U64 8
#define ST_F32 9
#define ST_F64 10

/* Where records are: in the program's memory, or in the value that st_get found last, without a copy of it. */
#define ST_MEMORY 0
#define ST_VALUE 1

struct st_column {
	const void *base; /* the first record; of a value, its offset there */
	st_u32 of;        /* ST_MEMORY or ST_VALUE */
	st_u64 count;     /* how many records */
	st_u32 stride;    /* from one record to the next, in bytes */
	st_u32 offset;    /* from a record to its field, in bytes */
	st_u32 type;      /* ST_I8 to ST_F64 */
	st_u32 zero;
};

/* Signed integers are widened to 64 bits, unsigned ones as well, floats to double. Constants, sums and extremes have
 * that wide type; they are passed as its 64 bits. */
struct st_aggregate {
	st_u64 count;
	st_u64 sum;      /* integers: modulo 2^64 */
	st_u64 min;      /* 0 if no value is a number */
	st_u64 max;
	st_u64 overflow; /* 1 if the sum of integers does not fit */
};

/* The bits of a constant, such as ST_BITS(1.5). */
#define ST_BITS(value) (((union { double number; st_u64 bits; }){ .number = (value) }).bits)

#define ST_EQ 1
#define ST_NE 2
#define ST_LT 3
#define ST_LE 4
#define ST_GT 5
#define ST_GE 6

/* How a selection changes a bitmap. */
#define ST_SET 0 /* it replaces it */
#define ST_AND 1
#define ST_OR 2

/* The bytes of a bitmap: record i is bit i % 8 of byte i / 8. */
#define ST_BITMAP_LENGTH(count) (((count) + 7) / 8)

/* Compares each record's field with a constant, writes the results to a bitmap, and counts the bits then set. */
ST_IMPORT("select") st_u64 st_select(const struct st_column *, st_u32 comparison, st_u64 constant, void *bitmap, st_u32 how);
/* How many records compare so. */
ST_IMPORT("count") st_u64 st_count(const struct st_column *, st_u32 comparison, st_u64 constant);
/* Count, sum and extremes of the records that a bitmap selects, or of all if it is 0. Gives the count. */
ST_IMPORT("aggregate") st_u64 st_aggregate(const struct st_column *, const void *bitmap, struct st_aggregate *to);
/* The sum alone. */
ST_IMPORT("sum") st_u64 st_sum(const struct st_column *, const void *bitmap);
/* The extremes alone: minimum, then maximum. Gives 0 if no value is a number. */
ST_IMPORT("minmax") st_u32 st_minmax(const struct st_column *, const void *bitmap, st_u64 to[2]);
/* Emits the records that a bitmap selects, whole, or all if it is 0. Gives their number. The last record must be there
 * to the end of its stride; for the others, to the end of its field. */
ST_IMPORT("emit_selected") st_u64 st_emit_selected(const struct st_column *, const void *bitmap);
/* How many of the first `bits` bits are set. */
ST_IMPORT("count_bits") st_u64 st_count_bits(const void *bitmap, st_u64 bits);

#endif
