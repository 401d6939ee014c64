// Texture and surface instructions: their operands and the TextureAccess of each.
//
//   tex.level.2d.v4.f32.f32 {d...}, [handle, {x, y}], level;
//   suld.b.a2d.v2.b32.clamp {d, d}, [handle, {layer, x, y, unused}];
//
// The handle is a register (a texture or surface object) or the name of a variable (a reference,
// which holds a handle). Offsets, depth comparison, multisample textures and 16-bit results are not
// supported.
#include <cstring>
#include <string_view>

#include "softgpu/exec/decoder.h"
#include "softgpu/exec/texture.h"

namespace softgpu::exec {

using ptx::Operand;
using ptx::Type;
using texture::Shape;

namespace {

template <class Value>
struct Named {
  std::string_view name;
  Value value;
};
constexpr Named<Shape> kShapes[] = {
    {"1d", Shape::k1d},
    {"2d", Shape::k2d},
    {"3d", Shape::k3d},
    {"a1d", Shape::k1dLayered},
    {"a2d", Shape::k2dLayered},
    {"cube", Shape::kCube},
    {"acube", Shape::kCubeLayered},
};
constexpr Named<texture::Bounds> kBounds[] = {
    {"trap", texture::Bounds::kTrap},
    {"clamp", texture::Bounds::kClamp},
    {"zero", texture::Bounds::kZero},
};
constexpr Named<TextureRead> kReads[] = {
    {"level", TextureRead::kLevel},
    {"grad", TextureRead::kGradient},
};
constexpr Named<uint8_t> kChannels[] = {{"r", 0}, {"g", 1}, {"b", 2}, {"a", 3}};
constexpr Named<TextureQuery> kQueries[] = {
    {"width", TextureQuery::kWidth},
    {"height", TextureQuery::kHeight},
    {"depth", TextureQuery::kDepth},
};

// Sets `*to` to the table's value for the instruction's modifier. Leaves it unchanged if no
// modifier is in the table.
template <class Value, size_t kCount>
void apply(const ptx::Instruction& source, const Named<Value> (&table)[kCount], Value* to) {
  for (const Named<Value>& entry : table) {
    if (has_modifier(source, entry.name)) *to = entry.value;
  }
}

}  // namespace

// Appends the first `needed` registers of a vector, or a single operand in its place. Further
// elements are padding.
bool Decoder::texture_vector(const Operand& operand, uint32_t needed, Type type,
                             std::vector<Slot>* list) {
  const bool braces = operand.kind == Operand::Kind::kVector;
  if (braces ? operand.elements.size() < needed || operand.elements.size() > 4 : needed != 1) {
    return false;
  }
  for (uint32_t k = 0; k < needed; ++k) {
    const Operand& element = braces ? operand.elements[k] : operand;
    if (!source(element, 4, type, &list->emplace_back())) return false;
  }
  return true;
}

// Reads the handle of [handle, ...]: sets out->a, and kReference for a reference.
bool Decoder::texture_object(const Operand& operand, Instr* out) {
  if (operand.kind != Operand::Kind::kAddress || operand.offset != 0) return false;
  const Operand& object = operand.elements[0];
  if (object.kind != Operand::Kind::kSymbol) return source(object, 8, Type::kNone, &out->a);
  uint64_t address = 0;
  bool frame_relative = false;
  if (!address_value(object, &address, &frame_relative)) return false;
  out->flags |= kReference;
  out->a = constant(address, 8);
  return true;
}

// Reads [handle, {coordinates}]. The layer comes first and is an integer.
bool Decoder::texture_place(const Operand& operand, Shape shape, Type type, Instr* out,
                            std::vector<Slot>* list) {
  if (!texture_object(operand, out) || operand.elements.size() != 2) return false;
  const uint32_t layers = texture::is_layered(shape) ? 1 : 0;
  return texture_vector(operand.elements[1], texture::axes_of(shape) + layers, type, list);
}

bool Decoder::decode_texture(const ptx::Instruction& source, const Pattern& pattern, Instr* out,
                             bool* handled) {
  *handled = true;
  out->flow = Flow::kFaulting;
  out->handler = texture_handler(pattern.op);
  switch (pattern.op) {
    case Op::kTexture:
      return decode_texture_read(source, out);
    case Op::kSurfaceLoad:
    case Op::kSurfaceStore:
      return decode_surface_access(source, pattern.op, out);
    case Op::kTextureQuery:
    case Op::kSurfaceQuery:
      return decode_texture_query(source, out);
    default:
      break;
  }
  *handled = false;
  out->flow = Flow::kPlain;
  return true;
}

bool Decoder::decode_texture_read(const ptx::Instruction& source, Instr* out) {
  Form form = form_of(source, Op::kTexture);
  TextureAccess how;
  apply(source, kShapes, &how.shape);
  apply(source, kReads, &how.read);
  if (source.opcode == "tld4") {
    how.read = TextureRead::kGather;
    apply(source, kChannels, &how.channel);
  }
  how.integer_coordinates = form.type2 == Type::kS32;
  if (how.integer_coordinates && how.read == TextureRead::kGradient) return false;
  const size_t extra = how.read == TextureRead::kLevel      ? 1
                       : how.read == TextureRead::kGradient ? 2
                                                            : 0;
  if (source.operands.size() != 2 + extra) return false;

  // {d...}|p: the predicate receives whether all texels are in memory.
  const Operand* results = &source.operands[0];
  if (results->kind == Operand::Kind::kPair) {
    if (!predicate_destination(results->elements[1], &out->d)) return false;
    results = &results->elements[0];
  }
  Operands operands;
  if (!vector(*results, false, form, &operands) || form.d_bytes != 4) return false;
  std::vector<Slot>& list = operands.list;
  if (!texture_place(source.operands[1], how.shape, form.type2, out, &list)) return false;
  for (size_t k = 0; k < extra; ++k) {
    const uint32_t needed = how.read == TextureRead::kLevel ? 1 : texture::axes_of(how.shape);
    if (!texture_vector(source.operands[2 + k], needed, form.type2, &list)) return false;
  }
  std::memcpy(&out->imm, &how, sizeof how);
  out->target = static_cast<uint32_t>(out_.lists.size());
  out_.lists.insert(out_.lists.end(), list.begin(), list.end());
  return true;
}

bool Decoder::decode_surface_access(const ptx::Instruction& source, Op op, Instr* out) {
  Form form = form_of(source, op);
  TextureAccess how;
  apply(source, kShapes, &how.shape);
  apply(source, kBounds, &how.bounds);
  if (source.operands.size() != 2) return false;
  const bool is_store = op == Op::kSurfaceStore;
  Operands operands;
  if (!vector(source.operands[is_store ? 1 : 0], is_store, form, &operands)) return false;
  how.values = form.elements;
  how.value_bytes = static_cast<uint8_t>(ptx::size_of(form.type));
  how.register_bytes = form.d_bytes;
  if (how.values * how.value_bytes > 16) return false;
  if (!texture_place(source.operands[is_store ? 0 : 1], how.shape, Type::kNone, out,
                     &operands.list)) {
    return false;
  }
  std::memcpy(&out->imm, &how, sizeof how);
  out->target = static_cast<uint32_t>(out_.lists.size());
  out_.lists.insert(out_.lists.end(), operands.list.begin(), operands.list.end());
  return true;
}

// txq.width.b32 d, [handle];
bool Decoder::decode_texture_query(const ptx::Instruction& source, Instr* out) {
  if (source.operands.size() != 2) return false;
  TextureQuery query = TextureQuery::kWidth;
  apply(source, kQueries, &query);
  out->imm = static_cast<int64_t>(query);
  return destination(source.operands[0], 4, &out->d) && source.operands[1].elements.size() == 1 &&
         texture_object(source.operands[1], out);
}

}  // namespace softgpu::exec
