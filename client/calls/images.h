// Sends module images. An image is identified by its content (SHA-256). It crosses the network once
// and stays in the server's cache across sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda.h>

#include "client/channel/session.h"
#include "client/objects/code.h"

namespace rcuda::client {

ImageHash hash_image(std::span<const std::byte> image);

// Makes sure that the worker has the image. Blocks for a round trip, for sending the bytes if the
// worker does not have them, and while another thread sends an image.
CUresult send_image(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image);

}  // namespace rcuda::client
