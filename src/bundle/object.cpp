// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bundle/object.h"

#include <gelf.h>
#include <libelf.h>
#include <linux/bpf.h>
#include <linux/btf.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "base/file.h"

namespace sluice::bundle {
namespace {

using Bytes = std::span<const std::uint8_t>;

template <class T>
std::optional<T> load(Bytes bytes, std::size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string c_string(Bytes bytes, std::size_t offset, std::size_t max = 256) {
  std::string out;
  for (; offset < bytes.size() && bytes[offset] != 0 && out.size() < max; ++offset) out += static_cast<char>(bytes[offset]);
  return out;
}

// The few kinds of BTF we need, by type id.
class Btf {
 public:
  static std::optional<Btf> parse(Bytes data) {
    auto header = load<btf_header>(data, 0);
    if (!header || header->magic != BTF_MAGIC) return std::nullopt;
    auto part = [&](std::uint64_t offset, std::uint64_t length) -> std::optional<Bytes> {
      std::uint64_t start = std::uint64_t{header->hdr_len} + offset;
      if (start > data.size() || length > data.size() - start) return std::nullopt;
      return data.subspan(start, length);
    };
    auto types = part(header->type_off, header->type_len);
    auto strings = part(header->str_off, header->str_len);
    if (!types || !strings) return std::nullopt;
    Btf btf;
    btf.types_ = *types;
    btf.strings_ = *strings;
    btf.offsets_.push_back(0);  // id 0 is void
    for (std::size_t offset = 0; offset < types->size();) {
      auto type = load<btf_type>(*types, offset);
      if (!type) return std::nullopt;
      btf.offsets_.push_back(offset);
      std::size_t vlen = BTF_INFO_VLEN(type->info);
      std::size_t extra = 0;
      switch (BTF_INFO_KIND(type->info)) {
        case BTF_KIND_INT:
        case BTF_KIND_VAR:
        case BTF_KIND_DECL_TAG:
          extra = 4;
          break;
        case BTF_KIND_ARRAY:
          extra = sizeof(btf_array);
          break;
        case BTF_KIND_STRUCT:
        case BTF_KIND_UNION:
          extra = vlen * sizeof(btf_member);
          break;
        case BTF_KIND_ENUM:
        case BTF_KIND_FUNC_PROTO:
          extra = vlen * 8;
          break;
        case BTF_KIND_DATASEC:
        case BTF_KIND_ENUM64:
          extra = vlen * 12;
          break;
        case BTF_KIND_PTR:
        case BTF_KIND_FWD:
        case BTF_KIND_TYPEDEF:
        case BTF_KIND_VOLATILE:
        case BTF_KIND_CONST:
        case BTF_KIND_RESTRICT:
        case BTF_KIND_FUNC:
        case BTF_KIND_FLOAT:
        case BTF_KIND_TYPE_TAG:
          break;
        default:
          return std::nullopt;
      }
      offset += sizeof(btf_type) + extra;
    }
    return btf;
  }

  std::string name(std::uint32_t id) const {
    auto type = at(id);
    return type ? c_string(strings_, type->name_off) : "";
  }
  std::uint32_t kind(std::uint32_t id) const {
    auto type = at(id);
    return type ? BTF_INFO_KIND(type->info) : std::uint32_t{BTF_KIND_UNKN};
  }
  std::uint32_t referenced(std::uint32_t id) const {
    auto type = at(id);
    return type ? type->type : 0;
  }
  // Id of the variable of that name; 0 = none.
  std::uint32_t variable(std::string_view wanted) const {
    for (std::uint32_t id = 1; id < offsets_.size(); ++id)
      if (kind(id) == BTF_KIND_VAR && name(id) == wanted) return id;
    return 0;
  }
  // Through typedefs and qualifiers.
  std::uint32_t strip(std::uint32_t id) const {
    for (int depth = 0; depth < 32; ++depth) {
      switch (kind(id)) {
        case BTF_KIND_TYPEDEF:
        case BTF_KIND_VOLATILE:
        case BTF_KIND_CONST:
        case BTF_KIND_RESTRICT:
        case BTF_KIND_TYPE_TAG:
          id = referenced(id);
          break;
        default:
          return id;
      }
    }
    return 0;
  }
  std::uint32_t size(std::uint32_t id) const {
    id = strip(id);
    auto type = at(id);
    if (!type) return 0;
    switch (BTF_INFO_KIND(type->info)) {
      case BTF_KIND_INT:
      case BTF_KIND_STRUCT:
      case BTF_KIND_UNION:
      case BTF_KIND_ENUM:
      case BTF_KIND_ENUM64:
      case BTF_KIND_FLOAT:
        return type->size;
      case BTF_KIND_PTR:
        return 8;
      default:
        return 0;
    }
  }
  struct MemberRef {
    std::string name;
    std::uint32_t type = 0;
    std::uint32_t offset = 0;  // bytes
  };
  std::vector<MemberRef> members(std::uint32_t id) const {
    std::vector<MemberRef> out;
    auto type = at(id);
    if (!type || BTF_INFO_KIND(type->info) != BTF_KIND_STRUCT) return out;
    for (std::size_t i = 0; i < BTF_INFO_VLEN(type->info); ++i) {
      auto member = load<btf_member>(types_, offsets_[id] + sizeof(btf_type) + i * sizeof(btf_member));
      if (!member) break;
      std::uint32_t bits = BTF_INFO_KFLAG(type->info) ? BTF_MEMBER_BIT_OFFSET(member->offset) : member->offset;
      out.push_back({c_string(strings_, member->name_off), member->type, bits / 8});
    }
    return out;
  }

 private:
  Bytes types_, strings_;
  std::vector<std::size_t> offsets_;

  std::optional<btf_type> at(std::uint32_t id) const {
    if (id == 0 || id >= offsets_.size()) return std::nullopt;
    return load<btf_type>(types_, offsets_[id]);
  }
};

struct Section {
  std::string name;
  GElf_Shdr header{};
  Bytes data;
};
struct Symbol {
  std::string name;
  std::uint64_t value = 0;
  std::uint64_t size = 0;
  std::size_t section = 0;
  unsigned type = 0;
};

class Reader {
 public:
  Reader(Elf* elf, ObjectInfo& info) : elf_(elf), info_(info) {}

  Status read() {
    SLUICE_CHECK(sections());
    symbols();
    Bytes btf_data = data_of(".BTF");
    if (!btf_data.empty()) btf_ = Btf::parse(btf_data);
    info_.has_btf = btf_.has_value();
    info_.license = c_string(data_of("license"), 0);
    calls();
    for (const Symbol& symbol : symbols_) {
      const std::string& section = sections_[symbol.section].name;
      if (symbol.name.empty()) continue;
      if (section == ".maps")
        map(symbol);
      else if (section.starts_with(".rodata") && symbol.type == STT_OBJECT)
        info_.rodata[symbol.name] = static_cast<std::uint32_t>(symbol.size);
      else if (section.starts_with(".struct_ops") && symbol.type == STT_OBJECT)
        struct_ops(symbol);
      else if (symbol.type == STT_FUNC)
        info_.functions.push_back(symbol.name);
    }
    return {};
  }

 private:
  Elf* elf_;
  ObjectInfo& info_;
  std::vector<Section> sections_;
  std::vector<Symbol> symbols_;
  std::vector<Symbol> by_index_;  // as the symbol table numbers them
  std::optional<Btf> btf_;

  Status sections() {
    std::size_t names = 0;
    if (elf_getshdrstrndx(elf_, &names) != 0)
      return fail(Code::kInvalid, "the section table cannot be read: {}", elf_errmsg(-1));
    sections_.emplace_back();
    Elf_Scn* scn = nullptr;
    while ((scn = elf_nextscn(elf_, scn)) != nullptr) {
      Section section;
      if (gelf_getshdr(scn, &section.header) == nullptr)
        return fail(Code::kInvalid, "a section cannot be read: {}", elf_errmsg(-1));
      if (const char* name = elf_strptr(elf_, names, section.header.sh_name)) section.name = name;
      if (section.header.sh_type != SHT_NOBITS)
        if (Elf_Data* data = elf_rawdata(scn, nullptr); data != nullptr && data->d_buf != nullptr)
          section.data = {static_cast<const std::uint8_t*>(data->d_buf), data->d_size};
      sections_.push_back(std::move(section));
    }
    return {};
  }

  Bytes data_of(std::string_view name) const {
    for (const Section& section : sections_)
      if (section.name == name) return section.data;
    return {};
  }

  void symbols() {
    for (const Section& table : sections_) {
      if (table.header.sh_type != SHT_SYMTAB) continue;
      for (std::size_t i = 0;; ++i) {
        auto raw = load<Elf64_Sym>(table.data, i * sizeof(Elf64_Sym));
        if (!raw) break;
        Symbol symbol;
        if (const char* name = elf_strptr(elf_, table.header.sh_link, raw->st_name)) symbol.name = name;
        symbol.value = raw->st_value;
        symbol.size = raw->st_size;
        symbol.section = raw->st_shndx < sections_.size() ? raw->st_shndx : 0;
        symbol.type = ELF64_ST_TYPE(raw->st_info);
        by_index_.push_back(symbol);
        if (symbol.section != 0) symbols_.push_back(symbol);
      }
      break;
    }
  }

  std::string function_at(std::size_t section, std::uint64_t offset) const {
    for (const Symbol& symbol : symbols_)
      if (symbol.type == STT_FUNC && symbol.section == section && offset >= symbol.value && offset - symbol.value < symbol.size)
        return symbol.name;
    return "";
  }

  void calls() {
    for (std::size_t index = 0; index < sections_.size(); ++index) {
      const Section& section = sections_[index];
      if (section.header.sh_type != SHT_PROGBITS || (section.header.sh_flags & SHF_EXECINSTR) == 0) continue;
      std::optional<std::int32_t> constant[BPF_REG_10 + 1];
      for (std::size_t offset = 0;; offset += sizeof(bpf_insn)) {
        auto insn = load<bpf_insn>(section.data, offset);
        if (!insn) break;
        unsigned cls = BPF_CLASS(insn->code);
        if (insn->code == (BPF_JMP | BPF_CALL)) {
          if (insn->src_reg == 0)
            info_.calls.push_back({section.name, function_at(index, offset), offset, static_cast<std::uint32_t>(insn->imm),
                                   constant[2], constant[3]});
          for (int reg = 0; reg <= 5; ++reg) constant[reg].reset();
        } else if (insn->code == (BPF_ALU64 | BPF_MOV | BPF_K) || insn->code == (BPF_ALU | BPF_MOV | BPF_K)) {
          if (insn->dst_reg <= BPF_REG_10) constant[insn->dst_reg] = insn->imm;
        } else if (cls == BPF_ALU || cls == BPF_ALU64 || cls == BPF_LD || cls == BPF_LDX) {
          if (insn->dst_reg <= BPF_REG_10) constant[insn->dst_reg].reset();
          if (insn->code == (BPF_LD | BPF_IMM | BPF_DW)) offset += sizeof(bpf_insn);  // two slots
        }
      }
    }
  }

  void map(const Symbol& symbol) {
    info_.maps.push_back(symbol.name);
    if (!btf_) return;
    for (const Btf::MemberRef& member : btf_->members(btf_->strip(btf_->referenced(btf_->variable(symbol.name))))) {
      if (member.name != "value" || btf_->kind(btf_->strip(member.type)) != BTF_KIND_PTR) continue;
      std::uint32_t value = btf_->strip(btf_->referenced(btf_->strip(member.type)));
      std::vector<Member> out;
      for (const Btf::MemberRef& field : btf_->members(value))
        out.push_back({field.name, field.offset, btf_->size(field.type)});
      if (!out.empty()) info_.map_values[symbol.name] = std::move(out);
    }
  }

  void struct_ops(const Symbol& symbol) {
    const Section& section = sections_[symbol.section];
    StructOps ops;
    ops.variable = symbol.name;
    ops.link = section.name.ends_with(".link");
    if (btf_) {
      std::uint32_t type = btf_->strip(btf_->referenced(btf_->variable(symbol.name)));
      ops.type = btf_->name(type);
      for (const Btf::MemberRef& member : btf_->members(type)) {
        std::uint64_t at = symbol.value + member.offset;
        if (std::string program = relocation(symbol.section, at); !program.empty()) ops.programs[member.name] = program;
        if (member.name == "name") ops.name = c_string(section.data, at, 15);
        if (member.name == "flags") ops.flags = load<std::uint32_t>(section.data, at).value_or(0);
      }
    }
    info_.struct_ops.push_back(std::move(ops));
  }

  // Symbol that a relocation puts at that place of a section.
  std::string relocation(std::size_t target, std::uint64_t offset) const {
    for (const Section& section : sections_) {
      if (section.header.sh_type != SHT_REL || section.header.sh_info != target) continue;
      for (std::size_t i = 0;; ++i) {
        auto rel = load<Elf64_Rel>(section.data, i * sizeof(Elf64_Rel));
        if (!rel) break;
        std::size_t index = ELF64_R_SYM(rel->r_info);
        if (rel->r_offset != offset || index >= by_index_.size()) continue;
        const Symbol& symbol = by_index_[index];
        if (symbol.type != STT_SECTION) return symbol.name;
        // Through the section's symbol: the place in the section is the word itself.
        std::uint64_t place = load<std::uint64_t>(sections_[target].data, offset).value_or(0);
        return function_at(symbol.section, place);
      }
    }
    return "";
  }
};

struct ElfEnd {
  void operator()(Elf* elf) const { elf_end(elf); }
};

}  // namespace

Result<ObjectInfo> read_object(const std::string& path) {
  SLUICE_TRY(bytes, read_file(path));
  auto refuse = [&](std::string what) {
    return fail(fail(Code::kInvalid, "{}", what).value().at(path).fix("build it with clang -target bpf"));
  };
  if (elf_version(EV_CURRENT) == EV_NONE) return refuse("libelf is too old");
  std::unique_ptr<Elf, ElfEnd> elf(elf_memory(bytes.data(), bytes.size()));
  GElf_Ehdr header;
  if (!elf || elf_kind(elf.get()) != ELF_K_ELF || gelf_getehdr(elf.get(), &header) == nullptr)
    return refuse("it is not an ELF file");
  if (header.e_machine != EM_BPF || header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_REL)
    return refuse("it is not a BPF object");
  if (header.e_ident[EI_DATA] != (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB))
    return refuse("it was built for another byte order");
  ObjectInfo info;
  if (auto status = Reader(elf.get(), info).read(); !status) return fail(std::move(status).error().at(path));
  return info;
}

}  // namespace sluice::bundle
