// Sending module images: each crosses the network once, by content (SHA-256), and stays in the
// server's cache between sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda.h>

#include "client/channel/session.h"
#include "client/objects/code.h"

namespace rcuda::client {

ImageHash hash_image(std::span<const std::byte> image);

// Makes sure that the worker has the image. Blocks for a round trip, for the bytes if it had not,
// and while another thread sends one.
CUresult send_image(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image);

}  // namespace rcuda::client
