// The decoder of one function. Private to decode*.cpp.
//
// decode.cpp walks the instructions and assembles them, decode_layout.cpp places registers, local
// variables and constants, decode_operands.cpp reads operands against a pattern's signature,
// decode_control.cpp handles branches, calls, barriers and warp collectives, decode_texture.cpp
// textures and surfaces.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "softgpu/exec/decode.h"
#include "softgpu/exec/forms.h"
#include "softgpu/texture/texture.h"

namespace softgpu::exec {

class Decoder {
 public:
  Decoder(const Linker& linker, uint32_t index,
          const std::vector<std::unique_ptr<Function>>& functions);
  rcuda::Status run();

 private:
  // The operands of an instruction, in order of their role.
  struct Operands {
    std::vector<Slot> destinations;
    std::vector<Slot> sources;
    std::vector<Slot> list;  // elements of a vector operand; an atomic's destinations come first
    std::vector<int64_t> immediates;
    const ptx::Operand* addresses[3] = {nullptr, nullptr, nullptr};
    bool paired = false;  // p|q was given
    bool negated_predicate = false;
  };

  rcuda::Status lay_out_registers();
  void lay_out_locals();
  void decode_instruction(const ptx::Instruction& source, Instr* out);
  bool try_pattern(const ptx::Instruction& source, const Pattern& pattern, Instr* out);
  bool assemble(const ptx::Instruction& source, Form& form, const Operands& operands, Instr* out);
  bool assemble_memory(const ptx::Instruction& source, Form& form, const Operands& operands,
                       Instr* out);
  bool assemble_bulk_copy(const ptx::Instruction& source, const Operands& operands, Instr* out);
  bool assemble_barrier_object(const ptx::Instruction& source, const Form& form,
                               const Operands& operands, Instr* out);
  bool decode_mov(const ptx::Instruction& source, Instr* out, bool* handled);
  rcuda::Status write_constants();
  void refuse(const std::string& what, uint32_t line);

  // decode_operands.cpp
  bool read_operands(const ptx::Instruction& source, const Pattern& pattern, Form& form,
                     Operands* out);
  bool read_operand(const ptx::Operand& operand, std::string_view role, Form& form, Operands* out);
  bool destination(const ptx::Operand& operand, uint32_t bytes, Slot* slot);
  bool predicate_destination(const ptx::Operand& operand, Slot* slot);
  bool source(const ptx::Operand& operand, uint32_t bytes, ptx::Type type, Slot* slot);
  bool predicate_source(const ptx::Operand& operand, bool may_negate, Slot* slot, bool* negated);
  bool vector(const ptx::Operand& operand, bool is_source, Form& form, Operands* out);
  bool special(std::string_view name, uint32_t bytes, Slot* slot);
  bool address(const ptx::Operand& operand, ptx::Space space, Slot* base, int64_t* offset,
               uint8_t* flags, ptx::Space* actual);
  // The address of a variable or symbol, as a value. Sets *frame_relative for local variables.
  bool address_value(const ptx::Operand& operand, uint64_t* value, bool* frame_relative);

  // decode_control.cpp
  bool decode_control(const ptx::Instruction& source, const Pattern& pattern, Instr* out,
                      bool* handled);
  bool decode_call(const ptx::Instruction& source, Instr* out);
  bool call_areas(const ptx::Operand& list, std::vector<Area>* areas);
  bool assemble_collective(const ptx::Instruction& source, const Form& form,
                           const Operands& operands, Instr* out);

  // decode_texture.cpp
  bool decode_texture(const ptx::Instruction& source, const Pattern& pattern, Instr* out,
                      bool* handled);
  bool decode_texture_read(const ptx::Instruction& source, Instr* out);
  bool decode_surface_access(const ptx::Instruction& source, Op op, Instr* out);
  bool decode_texture_query(const ptx::Instruction& source, Instr* out);
  bool texture_vector(const ptx::Operand& operand, uint32_t needed, ptx::Type type,
                      std::vector<Slot>* list);
  bool texture_object(const ptx::Operand& operand, Instr* out);
  bool texture_place(const ptx::Operand& operand, texture::Shape shape, ptx::Type type, Instr* out,
                     std::vector<Slot>* list);

  Slot register_slot(uint32_t index) const {
    return Slot(Bank::kRegisters, register_offset_[index]);
  }
  uint32_t register_bytes(uint32_t index) const;
  Slot constant(uint64_t bits, uint32_t bytes);
  Symbol find_symbol(std::string_view name);

  const Linker& linker_;
  const Linker::FunctionSource& where_;
  const ptx::Function& source_;
  const std::vector<std::unique_ptr<Function>>& functions_;
  Function& out_;
  std::vector<uint32_t> register_offset_;
  std::vector<uint32_t> local_offset_;  // of variables in the frame's local area
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> constants_;  // (bytes, bits) -> offset
  uint64_t constant_bytes_ = 0;
  std::string missing_symbol_;
};

// Returns the operation that reads a special register without a fixed slot; kNone for others.
Op dynamic_special(std::string_view name);

}  // namespace softgpu::exec
