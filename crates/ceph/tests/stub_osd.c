/* Stands for an OSD whose release lets object classes read in erasure-coded pools: it loads the class as an OSD does,
 * and gives it an object from a file. With REFUSE it answers reads as Ceph 16 to 20 do in such pools.
 *
 *     stub_osd -i NUMBER CLASS OBJECT METHOD REQUEST [REFUSE]
 *
 * The output of the method goes to standard output, what it returns to standard error. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*method)(void *, char *, int, char **, int *);

static struct {
    char name[32];
    method call;
} methods[8];
static int registered, refusal;
static char *object;
static int object_len;

int cls_register(const char *name, void **handle) {
    *handle = &methods;
    return name == NULL;
}

int cls_register_method(void *handle, const char *name, int flags, method call, void **of_method) {
    (void)handle;
    (void)flags;
    snprintf(methods[registered].name, sizeof methods[0].name, "%s", name);
    methods[registered].call = call;
    *of_method = &methods[registered++];
    return 0;
}

int cls_read(void *context, int at, int len, char **out, int *out_len) {
    (void)context;
    if (refusal)
        return refusal;
    int count = at >= object_len ? 0 : len < object_len - at ? len : object_len - at;
    *out = malloc(count ? count : 1);
    memcpy(*out, object + at, count);
    *out_len = count;
    return count;
}

void *cls_alloc(size_t len) {
    return malloc(len);
}

void cls_free(void *block) {
    free(block);
}

static char *content(const char *path, int *len) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        exit(90);
    *len = ftell(file);
    rewind(file);
    char *bytes = malloc(*len + 1);
    if (fread(bytes, 1, *len, file) != (size_t)*len)
        exit(91);
    fclose(file);
    return bytes;
}

int main(int count, char **words) {
    if (count < 7)
        return 92;
    void *library = dlopen(words[3], RTLD_NOW);
    void (*init)(void) = library ? (void (*)(void))dlsym(library, "__cls_init") : NULL;
    if (!init)
        return 93;
    init();
    int request_len, out_len = 0;
    object = content(words[4], &object_len);
    char *request = content(words[6], &request_len), *out = NULL;
    refusal = count > 7 ? -95 : 0;
    for (int i = 0; i < registered; i++)
        if (!strcmp(methods[i].name, words[5])) {
            int code = methods[i].call(NULL, request, request_len, &out, &out_len);
            fwrite(out, 1, out_len, stdout);
            fprintf(stderr, "%d", code);
            return 0;
        }
    return 94;
}
