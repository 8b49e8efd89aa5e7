/* A CUDA driver that agrees to everything and does nothing but copy memory.
 *
 * The compilers, cuda.core, cuda.bindings and this package call it as they call the real one, so that tests see which
 * calls are made for a launch, in which order and with which handles.  What matters is written to the standard error,
 * one call a line.  "Device" memory is memory of the process.  Kernels do not run.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef uint64_t Address;

#define SAY(...) (fprintf(stderr, "CALL " __VA_ARGS__), fputc('\n', stderr), fflush(stderr))

static Result agree(void) { return 0; }

static Result version(int *out) { *out = 13000; return 0; }
static Result device_count(int *out) { *out = 1; return 0; }
static Result device(int *out, int ordinal) { *out = ordinal; return 0; }
static Result device_name(char *out, int size, int ordinal) { strncpy(out, "none", size); return 0; }
static Result device_uuid(char *out, int ordinal) { memset(out, 1, 16); return 0; }
static Result device_attribute(int *out, int attribute, int ordinal) {
    switch (attribute) {
    case 75: *out = 9; break;     /* compute capability, major */
    case 76: *out = 0; break;     /* and minor */
    case 1: *out = 1024; break;   /* threads of a block */
    case 10: *out = 32; break;    /* of a warp */
    case 16: *out = 132; break;   /* multiprocessors */
    default: *out = 1;
    }
    return 0;
}

static void *const CONTEXT = (void *)0x1000;
static Result context_of(void **out) { *out = CONTEXT; return 0; }
static Result context_retain(void **out, int ordinal) { *out = CONTEXT; return 0; }
static Result context_pop(void **out) { if (out) *out = CONTEXT; return 0; }
static Result context_state(int ordinal, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
static Result context_device(int *out) { *out = 0; return 0; }
static Result context_id(void *context, Address *out) { *out = 77; return 0; }

static Result memory_info(size_t *room, size_t *total) { *room = *total = (size_t)1 << 37; return 0; }
static Result memory_alloc(Address *out, size_t size) {
    void *found;
    if (posix_memalign(&found, 512, size)) return 2;
    *out = (Address)found;
    return 0;
}
static Result host_alloc(void **out, size_t size, unsigned flags) { return posix_memalign(out, 4096, size) ? 2 : 0; }
static Result up(Address to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
static Result down(void *to, Address from, size_t size) { memcpy(to, (void *)from, size); return 0; }
static Result set_words(Address to, unsigned word, size_t count, void *stream) {
    for (size_t at = 0; at < count; at++) ((unsigned *)to)[at] = word;
    SAY("set %llx", (unsigned long long)to);
    return 0;
}
static Result unknown_pointer(void *out, int attribute, Address address) { return 1; }

static uintptr_t handles = 0x100000;
static Result event_create(void **out, unsigned flags) { *out = (void *)(handles += 16); return 0; }
static Result stream_create(void **out, unsigned flags) { *out = (void *)(handles += 16); return 0; }
static Result stream_capturing(void *stream, int *out) { *out = 0; return 0; }
static Result stream_id(void *stream, Address *out) { *out = (Address)stream; return 0; }

static char symbols[1 << 20];
static size_t used;
static Result library_load(void **out, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    *out = (void *)(handles += 16);
    SAY("load %p", *out);
    return 0;
}
static Result library_unload(void *library) { SAY("unload %p", library); return 0; }
static Result library_kernel(void **out, void *library, const char *name) {
    *out = (char *)library + 1;
    SAY("kernel %p of %p", *out, library);
    return 0;
}
static Result library_global(Address *out, size_t *size, void *library, const char *name) {
    *out = (Address)(symbols + used);
    if (size) *size = strstr(name, "code__") ? 4 : 8; /* the compilers' codes of errors, and slots */
    used = (used + 64) % sizeof symbols;
    SAY("symbol %llx of %p", (unsigned long long)*out, library);
    return 0;
}
static Result kernel_function(void **out, void *kernel) { *out = kernel; return 0; }
static Result attribute(int *out, int which, void *kernel, int ordinal) { *out = 1; return 0; }
static Result launch(const void *config, void *kernel, void **arguments, void **extra) {
    SAY("launch %p", kernel);
    return 0;
}
static Result launch_plain(void *kernel, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                           unsigned shared, void *stream, void **arguments, void **extra) {
    SAY("launch %p", kernel);
    return 0;
}
static Result text(Result code, const char **out) { *out = "an error"; return 0; }

static const struct { const char *name; void *call; } CALLS[] = {
    {"cuDriverGetVersion", version}, {"cuDeviceGetCount", device_count}, {"cuDeviceGet", device},
    {"cuDeviceGetName", device_name}, {"cuDeviceGetUuid", device_uuid}, {"cuDeviceGetAttribute", device_attribute},
    {"cuCtxGetCurrent", context_of}, {"cuDevicePrimaryCtxRetain", context_retain}, {"cuCtxPopCurrent", context_pop},
    {"cuDevicePrimaryCtxGetState", context_state}, {"cuCtxGetDevice", context_device}, {"cuCtxGetId", context_id},
    {"cuMemGetInfo", memory_info}, {"cuMemAlloc", memory_alloc}, {"cuMemHostAlloc", host_alloc},
    {"cuMemcpyHtoD", up}, {"cuMemcpyHtoDAsync", up}, {"cuMemcpyDtoH", down}, {"cuMemcpyDtoHAsync", down},
    {"cuMemsetD32Async", set_words}, {"cuPointerGetAttribute", unknown_pointer}, {"cuEventCreate", event_create},
    {"cuStreamCreate", stream_create}, {"cuStreamIsCapturing", stream_capturing}, {"cuStreamGetId", stream_id},
    {"cuLibraryLoadData", library_load}, {"cuLibraryUnload", library_unload}, {"cuLibraryGetKernel", library_kernel},
    {"cuLibraryGetGlobal", library_global}, {"cuKernelGetFunction", kernel_function},
    {"cuKernelGetAttribute", attribute}, {"cuFuncGetAttribute", attribute}, {"cuLaunchKernelEx", launch},
    {"cuLaunchKernel", launch_plain}, {"cuGetErrorString", text}, {"cuGetErrorName", text},
};

static Result look_up(const char *name, void **out, int asked, uint64_t flags, int *status) {
    if (status) *status = 0;
    *out = agree;
    if (!strncmp(name, "cuGetProcAddress", 16)) *out = look_up;
    for (size_t at = 0; at < sizeof CALLS / sizeof *CALLS; at++)
        if (!strcmp(CALLS[at].name, name)) *out = CALLS[at].call;
    return 0;
}

Result cuGetProcAddress_v2(const char *n, void **o, int v, uint64_t f, int *s) { return look_up(n, o, v, f, s); }
Result cuGetProcAddress(const char *name, void **out, int asked, uint64_t flags) {
    return look_up(name, out, asked, flags, NULL);
}
Result cuInit(unsigned flags) { return 0; }
Result cuDriverGetVersion(int *out) { return version(out); }
