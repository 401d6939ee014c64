// Texture and surface instructions: the handlers, and the options that decode passes to them.
//
// The object's handle is in register a, or in the variable whose address a holds. The other
// registers are in Function::lists from Instr::target on: results or stored values, then
// coordinates, then a level or the two vectors of a gradient. One version serves all instruction
// sets. A handler runs on the block's worker; nothing blocks.
#pragma once

#include <cstdint>

#include "softgpu/exec/form.h"
#include "softgpu/texture/surface.h"

namespace softgpu::exec {

enum class TextureRead : uint8_t { kPlain, kLevel, kGradient, kGather };

// Options of an access to a texture or surface, stored in Instr::imm. `values`: the number of
// registers that are read or written, of `register_bytes` each.
struct TextureAccess {
  TextureRead read = TextureRead::kPlain;
  texture::Shape shape = texture::Shape::k2d;
  texture::Bounds bounds = texture::Bounds::kTrap;
  bool integer_coordinates = false;
  uint8_t channel = 0;  // tld4
  uint8_t values = 4;
  uint8_t value_bytes = 4;  // in memory
  uint8_t register_bytes = 4;
};
static_assert(sizeof(TextureAccess) == sizeof(int64_t));

// The property that txq or suq queries, stored in Instr::imm.
enum class TextureQuery : uint8_t { kWidth, kHeight, kDepth };

// For Op::kTexture, kTextureQuery, kSurfaceLoad, kSurfaceStore and kSurfaceQuery.
Handler texture_handler(Op op);

}  // namespace softgpu::exec
