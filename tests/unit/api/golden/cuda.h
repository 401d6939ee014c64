/* A driver API of a few functions, in the style of cuda.h, for generator_test.py. */
#define CUDA_VERSION 13000
typedef enum { CUDA_SUCCESS = 0 } CUresult;
typedef struct CUstream_st *CUstream;
typedef struct CUctx_st *CUcontext;
typedef unsigned int CUdeviceptr_v1;
typedef unsigned long long CUdeviceptr;
typedef int CUdevice;
typedef struct CUwidget_st *CUwidget;
typedef struct { CUwidget parent; CUdevice device; void *hint; } CUwidgetParams;

#if defined(__CUDA_API_VERSION_INTERNAL)
#define __CUDA_API_PTSZ(api) api ## _ptsz
#define __CUDA_API_PTDS(api) api ## _ptds
#else
#define __CUDA_API_PTSZ(api) api
#define __CUDA_API_PTDS(api) api
#endif
#define cuWidgetPaint __CUDA_API_PTSZ(cuWidgetPaint)
#define cuWidgetShow __CUDA_API_PTDS(cuWidgetShow)
#define cuWidgetCreate cuWidgetCreate_v2

CUresult cuInit(unsigned int Flags);
CUresult cuWidgetCreate(CUwidget *widget, const CUwidgetParams *params, unsigned int flags);
CUresult cuWidgetDestroy(CUwidget widget);
CUresult cuWidgetGetSize(CUwidget widget,
                         size_t *width, size_t *height);
CUresult cuWidgetPaint(CUwidget widget, CUdeviceptr pixels, const unsigned char colour[3], CUstream hStream);
CUresult cuWidgetShow(const char *title);
CUresult cuWidgetGetChildren(CUwidget widget, CUwidget *children, size_t *count);
static inline CUresult cuNotAFunctionOfTheLibrary(int x) { return (CUresult)x; }

#if defined(__CUDA_API_VERSION_INTERNAL)
#undef cuWidgetPaint
#undef cuWidgetShow
#undef cuWidgetCreate
CUresult cuWidgetCreate(CUwidget *widget, const CUwidgetParams *params, unsigned int flags);
CUresult cuWidgetPaint(CUwidget widget, CUdeviceptr pixels, const unsigned char colour[3], CUstream hStream);
CUresult cuWidgetShow(const char *title);
CUresult cuWidgetMove(CUdeviceptr_v1 where);
#endif
