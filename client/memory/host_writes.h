// Work under way that may still write to this process's page-locked memory: copies to it that were
// not waited for, host functions, launches of graphs, which may contain either.
//
// Over media that share no memory a copy from page-locked memory to a device can be sent at once,
// with its command, if nothing in front of it in its stream can still change the source; the worker
// would otherwise have to come back for the bytes when the stream gets there.
// Threads: any. Costs a load while nothing is under way, or while no session needs it. Errs on the
// side of "pending": what was waited for through an event counts until its stream or context is
// synchronised.
#pragma once

#include <cstdint>

#include "client/session/session.h"

namespace rcuda::client::host_writes {

// Called for each session whose medium shares no memory; before, begun() does nothing.
void enable();
// Something of the kind is about to be posted to the stream.
void begun(const Session& session, wire::ObjectId context, wire::ObjectId stream);
bool pending();

// For a wait: what was under way when it began, and that it is over since the wait ended well.
// `whole_context`: all streams of it are waited for.
class Settling {
 public:
  Settling(const Session& session, wire::ObjectId context, wire::ObjectId stream,
           bool whole_context);
  void over() const;

 private:
  const Session& session_;
  const wire::ObjectId context_, stream_;
  const bool whole_context_;
  const uint64_t upto_;  // 0: nothing was pending
};

}  // namespace rcuda::client::host_writes
