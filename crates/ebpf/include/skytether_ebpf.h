/* Helpers for eBPF programs that run inside a Skytether drive.
 *
 * Compile with:  clang-14 -target bpf -mcpu=v3 -O2 -c program.c -I include
 *
 * The program begins at main(void), or at its only function that is not static, which may have another name and one
 * parameter: the number of arguments. What it returns is its exit code. Memory is the program's own: constants,
 * variables, the stack (4 KiB a call, calls nested up to 64 deep; clang permits 512 bytes a function), arguments,
 * values that st_get maps and memory of st_alloc. Any other access ends the program, and so do arguments of helpers
 * that make no sense, calls that the drive refuses, and the limits of the run. Each instruction counts, and helpers
 * charge for their work: 20 a call, 1 for each record or for each 8 bytes, 1 for each 64 bytes that st_get maps, 1000
 * for a call of the drive.
 *
 * eBPF has no floating point. Bulk helpers compare and add floats; st_float computes with single ones, whose bits are
 * in an unsigned long. Division by zero ends the program. There are no maps, no atomic operations, no calls through
 * pointers. Each run begins with new variables.
 */
#ifndef SKYTETHER_EBPF_H
#define SKYTETHER_EBPF_H

typedef unsigned char st_u8;
typedef unsigned short st_u16;
typedef unsigned int st_u32;
typedef unsigned long st_u64;
typedef signed char st_i8;
typedef short st_i16;
typedef int st_i32;
typedef long st_i64;

/* "Nothing found", where a result is a length or a position. */
#define ST_NONE ((st_u64)-1)

/* ---- Values ---- */

/* The value of a key, to read, and its length; 0 if there is none. The value is not copied. Release it after use. */
static const void *(*const st_get)(const void *key, st_u64 key_length, st_u64 *length) = (void *)1;
/* Copies the first key after `after` to `to` and gives its length, or ST_NONE. A key longer than `room` is cut off. */
static st_u64 (*const st_next)(const void *after, st_u64 after_length, void *to, st_u64 room) = (void *)2;
/* Stores a value. */
static st_u64 (*const st_put)(const void *key, st_u64 key_length, const void *value, st_u64 length) = (void *)3;

/* ---- Output, arguments, memory ---- */

/* Appends to the output. */
static st_u64 (*const st_emit)(const void *from, st_u64 length) = (void *)4;
/* Appends to the standard output, which people read. */
static st_u64 (*const st_print)(const void *from, st_u64 length) = (void *)5;
/* The number of arguments. */
static st_u64 (*const st_arg_count)(void) = (void *)6;
/* An argument, to read, and its length; 0 if there is none with that index. The first has the index 0. */
static const void *(*const st_arg)(st_u64 index, st_u64 *length) = (void *)7;
/* Memory of zeros. */
static void *(*const st_alloc)(st_u64 length) = (void *)8;
/* Gives back what st_get or st_alloc returned. */
static st_u64 (*const st_release)(const void *address) = (void *)9;
/* How many instructions are left. */
static st_u64 (*const st_remaining)(void) = (void *)10;

/* ---- Bytes ---- */

/* -1, 0 or 1: the order of two ranges of bytes. */
static st_i64 (*const st_compare)(const void *a, st_u64 a_length, const void *b, st_u64 b_length) = (void *)11;
/* Where `word` first is in `text`, or ST_NONE. */
static st_u64 (*const st_find)(const void *text, st_u64 text_length, const void *word, st_u64 word_length) = (void *)12;
/* Copies bytes; the ranges may overlap. */
static void *(*const st_copy)(void *to, const void *from, st_u64 length) = (void *)13;
/* Sets bytes. */
static void *(*const st_fill)(void *to, st_u64 byte, st_u64 length) = (void *)14;

/* ---- Floats: bits of a double, but where noted ---- */

#define ST_ADD 1
#define ST_SUB 2
#define ST_MUL 3
#define ST_DIV 4
#define ST_SQRT 5
#define ST_LESS 6          /* 1 if a < b, else 0 */
#define ST_SAME 7          /* 1 if a == b, else 0 */
#define ST_FROM_INT 8      /* a is a signed integer */
#define ST_TO_INT 9        /* a signed integer, towards zero; the nearest one that fits; 0 for no number */
#define ST_FROM_FLOAT 10   /* a has the bits of a float */
#define ST_TO_FLOAT 11     /* the bits of a float */
static st_u64 (*const st_float)(st_u64 operation, st_u64 a, st_u64 b) = (void *)15;

/* The bits of a constant, such as ST_BITS(1.5). */
#define ST_BITS(value) (((union { double number; st_u64 bits; }){ .number = (value) }).bits)

/* ---- Records: one field of many records of a fixed size, all little-endian ---- */

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

struct st_column {
	const void *base; /* the first record */
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
static st_u64 (*const st_select)(const struct st_column *, st_u64 comparison, st_u64 constant, void *bitmap,
				 st_u64 how) = (void *)20;
/* How many records compare so. */
static st_u64 (*const st_count)(const struct st_column *, st_u64 comparison, st_u64 constant) = (void *)21;
/* Count, sum and extremes of the records that a bitmap selects, or of all if it is 0. Gives the count. */
static st_u64 (*const st_aggregate)(const struct st_column *, const void *bitmap, struct st_aggregate *to) = (void *)22;
/* The sum alone. */
static st_u64 (*const st_sum)(const struct st_column *, const void *bitmap) = (void *)23;
/* The extremes alone: minimum, then maximum. Gives 0 if no value is a number. */
static st_u64 (*const st_minmax)(const struct st_column *, const void *bitmap, st_u64 to[2]) = (void *)24;
/* Emits the records that a bitmap selects, whole, or all if it is 0. Gives their number. The last record must be there
 * to the end of its stride; for the other helpers, to the end of its field. */
static st_u64 (*const st_emit_selected)(const struct st_column *, const void *bitmap) = (void *)25;
/* How many of the first `bits` bits are set. */
static st_u64 (*const st_count_bits)(const void *bitmap, st_u64 bits) = (void *)26;

#endif
