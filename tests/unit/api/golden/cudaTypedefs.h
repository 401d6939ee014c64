typedef CUresult (CUDAAPI *PFN_cuInit_v2000)(unsigned int Flags);
typedef CUresult (CUDAAPI *PFN_cuWidgetCreate_v5000)(CUwidget *widget, const CUwidgetParams *params, unsigned int flags);
typedef CUresult (CUDAAPI *PFN_cuWidgetCreate_v12000)(CUwidget *widget, const CUwidgetParams *params, unsigned int flags);
typedef CUresult (CUDAAPI *PFN_cuWidgetPaint_v5000)(CUwidget widget);
typedef CUresult (CUDAAPI *PFN_cuWidgetPaint_v7000_ptsz)(CUwidget widget);
