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

// A command that names images by their hashes.
struct ImageCommand {
  wire::Command command;
  size_t reply_bytes;
  // Sends further commands, which the worker executes after this command. Called at most once.
  std::function<void()> behind{};
};

// Executes the command with its images. Asks the worker which images it lacks, and sends the
// command together with these queries. So this takes one round trip if the worker has the images,
// or if they are small and go with the queries. If the worker lacks an image, the command fails and
// is sent again after the missing bytes. In this case the commands of `behind` fail too, and are
// not sent again. Blocks for the round trips, while it sends bytes, and while another thread sends
// an image.
CUresult call_with_images(Session& session, wire::ObjectId context, const ImageParts& image,
                          const ImageCommand& command, std::optional<Reply>* reply);

// Sends the image if the worker lacks it. Blocks like call_with_images().
CUresult send_image(Session& session, wire::ObjectId context, const ImageHash& hash,
                    std::span<const std::byte> image);

}  // namespace rcuda::client
