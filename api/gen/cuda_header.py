"""Reads the declarations of the installed CUDA toolkit: prototypes, exported symbols, symbol versions.

Prototypes come from the preprocessed cuda.h and cudaProfiler.h (with __CUDA_API_VERSION_INTERNAL,
so that every version of every function appears under its own name). The toolkit's stub libcuda.so
adds symbols that no header declares. cudaTypedefs.h shows which CUDA version introduced which
version of a function: PFN_cuMemAlloc_v3020 is cuMemAlloc_v2.
"""

import dataclasses
import pathlib
import re
import subprocess

PER_THREAD_SUFFIX = re.compile(r"_(ptds|ptsz)$")


@dataclasses.dataclass(frozen=True)
class Parameter:
    type: str  # normalised: one space between words, no space before '*': "const char*"
    name: str

    @property
    def pointee(self):
        """The type this parameter points to, without const; None if it is not a pointer."""
        if not self.type.endswith("*"):
            return None
        return self.type[:-1].removeprefix("const ").strip()

    @property
    def is_const_pointer(self):
        return self.type.startswith("const ") and self.type.endswith("*")


@dataclasses.dataclass(frozen=True)
class Prototype:
    name: str
    parameters: tuple

    @property
    def declaration(self):
        return f"CUresult {self.name}({self.parameter_list})"

    @property
    def parameter_list(self):
        return ", ".join(f"{p.type} {p.name}" for p in self.parameters) or "void"

    @property
    def types(self):
        return tuple(p.type for p in self.parameters)


@dataclasses.dataclass(frozen=True)
class Toolkit:
    prototypes: dict  # symbol -> Prototype, in the order of the symbol's name
    symbols: tuple  # every symbol a libcuda.so.1 exports, sorted; some have no prototype
    versions: dict  # base name -> sorted CUDA versions at which its symbol changed
    cuda_version: int
    layouts: dict = dataclasses.field(default_factory=dict)  # see parse_layouts()


def normalise_type(text):
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"\s*\*\s*", "*", text)


def parse_parameter(text, position):
    text = text.strip()
    array = re.fullmatch(r"(.*?)\s*(\w+)\s*\[\s*\d*\s*\]", text, re.S)
    if array:
        return Parameter(normalise_type(array[1] + "*"), array[2])
    match = re.fullmatch(r"(.*?[\s*])(\w+)", text, re.S)
    if match and match[1].strip() not in ("", "const", "unsigned", "struct", "enum"):
        return Parameter(normalise_type(match[1]), match[2])
    if match and match[1].strip() == "unsigned" and match[2] not in ("int", "char", "short", "long"):
        return Parameter("unsigned", match[2])
    return Parameter(normalise_type(text), f"argument{position}")


def parse_prototypes(preprocessed):
    """Every `CUresult cuX(...);` of preprocessed header text, by name."""
    text = re.sub(r"^#.*$", "", preprocessed, flags=re.M)
    found = {}
    for match in re.finditer(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*?)\)\s*;", text):
        arguments = match[2].strip()
        parameters = ()
        if arguments not in ("", "void"):
            parameters = tuple(
                parse_parameter(part, i) for i, part in enumerate(arguments.split(",")))
        found[match[1]] = Prototype(match[1], parameters)
    return dict(sorted(found.items()))


def parse_layouts(preprocessed):
    """Name of a struct, union or typedef of CUDA -> the text that defines it. Enumerations are
    left out: they grow, and all have the same size."""
    text = re.sub(r"\s+", " ", re.sub(r"^#.*$", "", preprocessed, flags=re.M))
    found = {}
    for match in re.finditer(r"\b(typedef )?(?:struct|union) (\w+ )?\{", text):
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        names = text[end:text.index(";", end)] if match[1] else ""
        for name in [match[2] or "", *names.split(",")]:
            if re.fullmatch(r"\s*(CU|cu)\w+\s*", name):
                found[name.strip()] = text[match.start():end]
    for kind, name in re.findall(r"\btypedef ((?:struct |union )?\w+(?: \w+)*) ((?:CU|cu)\w+) ?;", text):
        found.setdefault(name, kind)
    return found


def parse_versions(typedefs):
    """base name -> sorted versions, from the PFN_<name>_v<version> typedefs."""
    versions = {}
    # Skips the _ptds and _ptsz typedefs. They repeat the plain typedefs with the version that introduced
    # per-thread streams, and select no other symbol.
    for match in re.finditer(r"\bPFN_(cu\w+?)_v(\d{4,5})\s*\)", typedefs):
        versions.setdefault(match[1], set()).add(int(match[2]))
    return {name: sorted(found) for name, found in sorted(versions.items())}


def split_version(symbol):
    """cuMemAlloc_v2_ptsz -> ("cuMemAlloc", 2)."""
    match = re.fullmatch(r"(\w+?)(?:_v(\d+))?", PER_THREAD_SUFFIX.sub("", symbol))
    return match[1], int(match[2] or 1)


# Symbols that NVIDIA's driver exports besides those of cuda.h: the functions of cudaGL.h, cudaEGL.h and
# cudaVDPAU.h, and a debugger's entry points (cudadebugger.h). Media frameworks look all of them up before they
# use CUDA.
OTHER_SYMBOLS = frozenset("""
    cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerConnect cuEGLStreamConsumerConnectWithFlags
    cuEGLStreamConsumerDisconnect cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect
    cuEGLStreamProducerDisconnect cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame
    cuGLCtxCreate cuGLCtxCreate_v2 cuGLGetDevices cuGLGetDevices_v2 cuGLInit cuGLMapBufferObject
    cuGLMapBufferObjectAsync cuGLMapBufferObjectAsync_v2 cuGLMapBufferObject_v2 cuGLRegisterBufferObject
    cuGLSetBufferObjectMapFlags cuGLUnmapBufferObject cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject
    cuGraphicsEGLRegisterImage cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage
    cuGraphicsResourceGetMappedEglFrame cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface
    cuVDPAUCtxCreate cuVDPAUCtxCreate_v2 cuVDPAUGetDevice cudbgApiInit cudbgGetAPI cudbgGetAPIVersion cudbgMain
""".split())


def exported_symbols(nm, stub_library):
    if not stub_library or not pathlib.Path(stub_library).exists():
        return set()
    listing = subprocess.run([nm, "-D", "--defined-only", stub_library], check=True,
                             capture_output=True, text=True).stdout
    names = (line.split()[-1] for line in listing.splitlines() if line.strip())
    return {name.split("@")[0] for name in names if name.startswith("cu")}


def preprocess(compiler, include_dir):
    source = "#include <cuda.h>\n#include <cudaProfiler.h>\nrcuda_version CUDA_VERSION\n"
    command = [compiler, "-E", "-P", "-x", "c", "-D__CUDA_API_VERSION_INTERNAL",
               f"-I{include_dir}", "-"]
    return subprocess.run(command, input=source, check=True, capture_output=True, text=True).stdout


def read_toolkit(compiler, include_dir, nm="nm", stub_library=None):
    text = preprocess(compiler, include_dir)
    prototypes = parse_prototypes(text)
    typedefs = ""
    for header in ("cudaTypedefs.h", "cudaProfilerTypedefs.h"):
        path = pathlib.Path(include_dir) / header
        typedefs += path.read_text(encoding="utf-8", errors="replace")
    symbols = tuple(sorted(set(prototypes) | OTHER_SYMBOLS | exported_symbols(nm, stub_library)))
    cuda_version = int(re.search(r"rcuda_version\s+(\d+)", text)[1])
    return Toolkit(prototypes, symbols, parse_versions(typedefs), cuda_version, parse_layouts(text))
