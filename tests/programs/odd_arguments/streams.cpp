#include "show.h"

void streams(const World& w) {
  CUstream s = w.stream, made = nullptr;
  CUdeviceptr address = 0;
  CU(cuMemAlloc(&address, 4096));
  SHOW(cuStreamCreate(&made, 0x100));
  SHOW(cuStreamCreateWithPriority(&made, 0x100, 0));
  SHOW(cuStreamCreateWithPriority(&made, 0, 1000));
  SHOW(cuStreamDestroy(nullptr));
  CUstreamAttrValue value{};
  SHOW(cuStreamGetAttribute(s, odd<CUstreamAttrID>(), &value));
  SHOW(cuStreamGetAttribute(s, odd<CUstreamAttrID>(0), &value));
  SHOW(cuStreamSetAttribute(s, odd<CUstreamAttrID>(), &value));
  SHOW(cuStreamGetAttribute(s, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  value.syncPolicy = odd<CUsynchronizationPolicy>();
  SHOW(cuStreamSetAttribute(s, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  SHOW(cuStreamWaitEvent(s, nullptr, 0));
  SHOW(cuStreamAddCallback(
      s, [](CUstream, CUresult, void*) {}, nullptr, 1));
  SHOW(cuStreamWaitValue32(s, 0, 0, CU_STREAM_WAIT_VALUE_GEQ));
  SHOW(cuStreamWaitValue32(s, address + 1, 0, CU_STREAM_WAIT_VALUE_GEQ));
  SHOW(cuStreamWaitValue32(s, address, 0, 0x100));
  SHOW(cuStreamWaitValue64(s, address + 4, 0, CU_STREAM_WAIT_VALUE_GEQ));
  SHOW(cuStreamWriteValue32(s, 0, 0, 0));
  SHOW(cuStreamWriteValue32(s, address + 1, 0, 0));
  SHOW(cuStreamWriteValue32(s, address, 0, 0x100));
  SHOW(cuStreamWriteValue64(s, address + 4, 0, 0));
  CUstreamBatchMemOpParams operations[1]{};
  SHOW(cuStreamBatchMemOp(s, 0, operations, 0));
  SHOW(cuStreamBatchMemOp(s, 1, operations, 0));
  operations[0].operation = odd<CUstreamBatchMemOpType>();
  SHOW(cuStreamBatchMemOp(s, 1, operations, 0));
  operations[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = address;
  SHOW(cuStreamBatchMemOp(s, 1, operations, 0x100));
  SHOW(cuStreamBeginCapture(s, odd<CUstreamCaptureMode>()));
  SHOW(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
  SHOW(
      cuStreamBeginCaptureToGraph(s, nullptr, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUgraph graph = nullptr;
  SHOW(cuStreamEndCapture(s, &graph));
  SHOW(cuStreamEndCapture(nullptr, &graph));
  SHOW(cuStreamUpdateCaptureDependencies(s, nullptr, nullptr, 0, 0));
  CUstreamCaptureMode mode = odd<CUstreamCaptureMode>();
  SHOW(cuThreadExchangeStreamCaptureMode(&mode));
  CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  SHOW(cuStreamUpdateCaptureDependencies(s, nullptr, nullptr, 0, 0x100));
  SHOW(cuStreamUpdateCaptureDependencies(s, nullptr, nullptr, 0, 0));
  SHOW(cuMemsetD8Async(address, 0, 0, s));
  SHOW(cuMemcpyDtoDAsync(address, address, 0, s));
  graph = nullptr;
  SHOW(cuStreamEndCapture(s, &graph));
  size_t count = 9;
  if (graph) {
    CU(cuGraphGetNodes(graph, nullptr, &count));
    CU(cuGraphDestroy(graph));
  }
  VALUE(count);
  CU(cuStreamSynchronize(s));
  CU(cuMemFree(address));
}

void events(const World& w) {
  CUevent timed = nullptr, plain = nullptr, made = nullptr;
  CU(cuEventCreate(&timed, CU_EVENT_DEFAULT));
  CU(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
  SHOW(cuEventCreate(&made, 0x100));
  SHOW(cuEventCreate(&made, CU_EVENT_INTERPROCESS));
  SHOW(cuEventRecord(nullptr, w.stream));
  SHOW(cuEventRecordWithFlags(plain, w.stream, 0x100));
  SHOW(cuEventRecordWithFlags(plain, w.stream, CU_EVENT_RECORD_EXTERNAL));
  SHOW(cuEventQuery(nullptr));
  SHOW(cuEventSynchronize(nullptr));
  SHOW(cuEventDestroy(nullptr));
  SHOW(cuStreamWaitEvent(w.stream, plain, 0x100));
  SHOW(cuStreamWaitEvent(w.stream, plain, CU_EVENT_WAIT_EXTERNAL));
  SHOW(cuEventQuery(plain));
  SHOW(cuEventSynchronize(plain));
  float milliseconds = -1;
  SHOW(cuEventElapsedTime(&milliseconds, timed, timed));
  CU(cuEventRecord(timed, w.stream));
  CU(cuEventRecord(plain, w.stream));
  CU(cuStreamSynchronize(w.stream));
  SHOW(cuEventElapsedTime(&milliseconds, timed, plain));
  SHOW(cuEventElapsedTime(&milliseconds, timed, timed));
  VALUE(milliseconds);
  SHOW(cuEventElapsedTime(&milliseconds, nullptr, timed));
  CUipcEventHandle handle{};
  SHOW(cuIpcGetEventHandle(&handle, plain));
  SHOW(cuCtxRecordEvent(w.context, nullptr));
  SHOW(cuCtxWaitEvent(w.context, nullptr));
  CU(cuEventDestroy(timed));
  CU(cuEventDestroy(plain));
}
