/* A libcuda.so.1 on host memory, to call by ctypes: the signatures are cuda.h's own, and with
 * -DWITH_CUDA_H the compiler compares them with the real header.  Copies happen when a stream has
 * been asked for the third time; calls that need a context fail without a current one. */

#include <stdlib.h>
#include <string.h>

#ifdef WITH_CUDA_H
#include <cuda.h>
_Static_assert(CU_MEMHOSTREGISTER_PORTABLE == 1 && CU_MEMHOSTREGISTER_READ_ONLY == 8, "flags");
_Static_assert(CU_STREAM_NON_BLOCKING == 1 && CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == 1, "flags");
_Static_assert(CU_IPC_HANDLE_SIZE == 64 && sizeof(CUdeviceptr) == 8, "sizes");
_Static_assert(CUDA_ERROR_NOT_READY == 600 && CUDA_ERROR_ILLEGAL_ADDRESS == 700, "codes");
_Static_assert(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED == 113, "attributes");
#else
#include <stddef.h>
typedef int CUresult, CUdevice, CUdevice_attribute;
typedef unsigned long long CUdeviceptr;
typedef struct { int depth; } *CUcontext;
typedef struct { int asked; } *CUstream;
typedef struct { char reserved[64]; } CUipcMemHandle;
#endif

enum { OK = 0, BAD_VALUE = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201, LATER = 600, REFUSED = 801 };
enum { LIMIT_BYTES = 1 << 26, COPIES = 64, POLLS = 2 };

int stub_depth, stub_contexts, stub_streams;       /* what must be balanced in the end */
unsigned stub_open_flags, stub_register_flags, stub_stream_flags;
int stub_stuck, stub_query_result;
static size_t sizes[64];
static char *bases[64];
static int allocations;
static struct { char *to; const char *from; size_t size; } copies[COPIES];
static int copies_waiting, polls;

#define NEEDS_CONTEXT if (!stub_depth) return NO_CONTEXT

CUresult cuInit(unsigned int flags) { return flags ? BAD_VALUE : OK; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return OK; }
CUresult cuDeviceGetCount(int *count) { *count = 2; return OK; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = 40 + ordinal; return OK; }

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  if (device != 41 || size < 16) return BAD_VALUE;
  strcpy(name, "Stub 1");
  return OK;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  *value = 1000 * device + (int)attribute;
  return OK;
}

CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device) {
  if (device < 40 || device > 41 || size < 13) return BAD_VALUE;
  strcpy(text, device == 40 ? "0000:02:00.0" : "0000:3B:00.0");
  return OK;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  if (device != 41) return BAD_VALUE;
  stub_contexts++;
  *context = (CUcontext)&stub_depth;
  return OK;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  stub_contexts--;
  return device == 41 ? OK : BAD_VALUE;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (context != (CUcontext)&stub_depth) return BAD_VALUE;
  stub_depth++;
  return OK;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  if (!stub_depth) return NO_CONTEXT;
  stub_depth--;
  *context = (CUcontext)&stub_depth;
  return OK;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  NEEDS_CONTEXT;
  *free_bytes = LIMIT_BYTES;
  *total = 2 * (size_t)LIMIT_BYTES;
  return OK;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
  NEEDS_CONTEXT;
  if (size > LIMIT_BYTES || allocations == 64) return OUT_OF_MEMORY;
  sizes[allocations] = size;
  bases[allocations] = malloc(size);
  *address = (CUdeviceptr)bases[allocations++];
  return OK;
}

static int found(CUdeviceptr address) {
  for (int i = 0; i < allocations; i++)
    if (bases[i] && (char *)address >= bases[i] && (char *)address < bases[i] + sizes[i]) return i;
  return -1;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  NEEDS_CONTEXT;
  int i = found(address);
  if (i < 0 || bases[i] != (char *)address) return BAD_VALUE;
  free(bases[i]);
  bases[i] = NULL;
  return OK;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  NEEDS_CONTEXT;
  int i = found(address);
  if (i < 0) return BAD_VALUE;
  *base = (CUdeviceptr)bases[i];
  *size = sizes[i];
  return OK;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  NEEDS_CONTEXT;
  memset(handle->reserved, 7, sizeof handle->reserved);
  handle->reserved[63] = 9; /* the last byte travels, too */
  memcpy(handle->reserved, &address, sizeof address);
  return OK;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
  NEEDS_CONTEXT;
  if (handle.reserved[62] != 7 || handle.reserved[63] != 9) return BAD_VALUE;
  stub_open_flags = flags;
  memcpy(address, handle.reserved, sizeof *address);
  return OK;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  NEEDS_CONTEXT;
  return found(address) < 0 ? BAD_VALUE : OK;
}

CUresult cuMemHostRegister_v2(void *memory, size_t size, unsigned int flags) {
  NEEDS_CONTEXT;
  if (!memory || !size) return BAD_VALUE;
  stub_register_flags = flags;
  return flags & 8 ? REFUSED : OK;
}

CUresult cuMemHostUnregister(void *memory) {
  NEEDS_CONTEXT;
  return memory ? OK : BAD_VALUE;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
  NEEDS_CONTEXT;
  stub_stream_flags = flags;
  *stream = (CUstream)(size_t)(0x500000000 + ++stub_streams); /* beyond 32 bits, as addresses are */
  return OK;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  NEEDS_CONTEXT;
  stub_streams--;
  return stream ? OK : BAD_VALUE;
}

static CUresult queue(char *to, const char *from, size_t size) {
  if (copies_waiting == COPIES) return BAD_VALUE;
  copies[copies_waiting].to = to;
  copies[copies_waiting].from = from;
  copies[copies_waiting++].size = size;
  polls = 0;
  return OK;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  NEEDS_CONTEXT;
  if (found(to) < 0 || !stream) return BAD_VALUE;
  return queue((char *)to, from, size);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  NEEDS_CONTEXT;
  if (found(from) < 0 || !stream) return BAD_VALUE;
  return queue(to, (char *)from, size);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  NEEDS_CONTEXT;
  if (found(to) < 0 || found(from) < 0 || !stream) return BAD_VALUE;
  return queue((char *)to, (char *)from, size);
}

CUresult cuStreamQuery(CUstream stream) {
  NEEDS_CONTEXT;
  if (!stream) return BAD_VALUE;
  if (stub_query_result) return stub_query_result;
  if (stub_stuck || polls++ < POLLS) return LATER;
  for (int i = 0; i < copies_waiting; i++) memcpy(copies[i].to, copies[i].from, copies[i].size);
  copies_waiting = 0;
  return OK;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
  if (error == 999) return BAD_VALUE;
  *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STUB";
  return OK;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  if (error == 999) return BAD_VALUE;
  *text = error == OUT_OF_MEMORY ? "out of memory" : "as the stub likes";
  return OK;
}
