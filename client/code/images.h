// Sends module images. An image is identified by its content (SHA-256). It crosses the network once
// and stays in the server's cache across sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include <cuda.h>

#include "client/objects/code.h"
#include "client/session/session.h"

namespace rcuda::client {

ImageHash hash_image(std::span<const std::byte> image);

// A command that names images of the worker by their hashes.
struct ImageCommand {
  uint16_t opcode;
  std::span<const std::byte> body, tail;
  size_t reply_bytes;
  // Sends what belongs to the command and finds it executed; called once at most.
  std::function<void()> behind{};
};

// Runs the command once the worker has the images. Questions and command are sent together: it is
// one round trip if the worker has the images, for which the command may be sent in vain, or if
// they are small and go with the questions. Blocks for that, for sending the bytes that the worker
// lacks, and while another thread sends an image.
// `behind` is sent with the first command only, so likewise in vain.
CUresult call_with_images(Session& session, wire::ObjectId context, const ImageParts& image,
                          const ImageCommand& command, std::optional<Reply>* reply);

// Makes sure that the worker has the image. Blocks likewise.
CUresult send_image(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image);

}  // namespace rcuda::client
