"""Coefficients of the recipes' polynomials, our own minimax fits, and what describes the two float formats."""

from __future__ import annotations

from polyml.codegen.llvm.ir import Type
from polyml.records import dataclass

__all__ = [
    "DOUBLE",
    "EXP2_BESIDE_EIGHTHS",
    "EXP2_OF_DOUBLE",
    "EXP_BESIDE_EIGHTHS",
    "EXP_BESIDE_QUARTERS",
    "LOG2_OF_DOUBLE",
    "SINGLE",
    "Format",
    "format_of",
]


def _hex(*numbers: str) -> tuple[float, ...]:
    return tuple(map(float.fromhex, numbers))


def _hex2(first: str, second: str) -> tuple[float, float]:
    return float.fromhex(first), float.fromhex(second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A float format and its fits.

    magic: 1.5 * 2^mantissa: adding it rounds to an integer, which stands in the low bits. inverse_ln2, ln2: 1/ln 2, and ln 2 in two parts. root_half: the bits of
    sqrt(1/2). expm1: (e^r - 1 - r)/r^2, its errors weighted as expm1 needs them; exp: as exp needs them; abs(r) <= ln(2)/2. log: see logarithm.py.
    exp_tiny: the same as exp for abs(r) <= ln(2)/2/n, where roots are the n powers 2^(k/n), k < n.
    erf: -ln(1 - erf(a))/a. gelu: log2(2 P)/a with P = erfc(a/sqrt(2))/2, its errors weighted as P needs them, and two digits of P right up to 8; falling from there on, and exponents of P normal up to gelu_end. sin: (sin r - r)/r^3 and cos: (cos r - 1 + r^2/2)/r^4 in r^2, abs(r) <= pi/4. atan: (atan t - t)/t^3 in t^2, abs(t) <= tan(pi/8). half_pi: pi/2 in parts.
    """

    mantissa: int
    bias: int
    magic: float
    inverse_ln2: float
    ln2: tuple[float, float]
    two_over_pi: float
    half_pi: tuple[float, ...]
    root_half: int
    exp_safe: float
    exp_range: tuple[float, float]
    gelu_end: float
    tanh_end: float
    erf_end: float
    trig_safe: float
    smallest: float
    exp: tuple[float, ...]
    exp_tiny: tuple[float, ...]
    roots: tuple[float, ...]
    expm1: tuple[float, ...]
    log: tuple[float, ...]
    erf: tuple[float, ...]
    gelu: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    atan: tuple[float, ...]


SINGLE = Format(
    mantissa=23,
    bias=127,
    magic=12582912.0,
    inverse_ln2=float.fromhex("0x1.715476p+0"),
    ln2=_hex2("0x1.62e43p-1", "-0x1.05c61p-29"),
    two_over_pi=float.fromhex("0x1.45f306p-1"),
    half_pi=_hex("0x1.921fb6p+0", "-0x1.777a5cp-25", "-0x1.ee59dap-50"),
    root_half=0x3F3504F3,
    exp_safe=85.0,
    exp_range=(-104.0, 89.0),
    gelu_end=11.0,
    tanh_end=9.2,
    erf_end=3.925,
    trig_safe=32768.0,
    smallest=float.fromhex("0x1p-126"),
    exp=_hex(
        "0x1.fffffcp-2",
        "0x1.555492p-3",
        "0x1.5558f2p-5",
        "0x1.123a1ep-7",
        "0x1.6a23e6p-10",
    ),  # fit error 2^-28.03
    exp_tiny=_hex(
        "0x1.00022p-1",
        "0x1.55559ap-3",
    ),  # fit error 2^-29.22
    roots=_hex(
        "0x1p+0",
        "0x1.0b5586p+0",
        "0x1.172b84p+0",
        "0x1.2387a6p+0",
        "0x1.306fep+0",
        "0x1.3dea64p+0",
        "0x1.4bfdaep+0",
        "0x1.5ab07ep+0",
        "0x1.6a09e6p+0",
        "0x1.7a1148p+0",
        "0x1.8ace54p+0",
        "0x1.9c4918p+0",
        "0x1.ae89fap+0",
        "0x1.c199bep+0",
        "0x1.d5818ep+0",
        "0x1.ea4afap+0",
    ),
    expm1=_hex(
        "0x1.fffffep-2",
        "0x1.5554bp-3",
        "0x1.555674p-5",
        "0x1.1227bp-7",
        "0x1.6bebf6p-10",
    ),  # fit error 2^-25.79
    log=_hex(
        "0x1.555554p-2",
        "-0x1.000228p-2",
        "0x1.99a008p-3",
        "-0x1.547244p-3",
        "0x1.22da14p-3",
        "-0x1.0d8544p-3",
        "0x1.055ba6p-3",
        "-0x1.38b608p-4",
    ),  # fit error 2^-26.88
    erf=_hex(
        "0x1.20dd76p+0",
        "0x1.45f2fap-1",
        "0x1.a4fa5ep-4",
        "-0x1.39cdcap-6",
        "-0x1.505b6ap-13",
        "0x1.b4ff96p-10",
        "-0x1.4bc8f8p-11",
        "0x1.ed69e2p-14",
        "-0x1.36944p-17",
    ),  # fit error 2^-24.20
    gelu=_hex(
        "-0x1.26afp+0",
        "-0x1.d63282p-2",
        "-0x1.af0634p-5",
        "0x1.dc5ef4p-8",
        "-0x1.4d287ap-12",
        "-0x1.ae45bap-14",
        "0x1.52ce38p-16",
        "-0x1.2e30f8p-20",
    ),  # fit error 2^-24.98 of P
    sin=_hex(
        "-0x1.555546p-3",
        "0x1.11073p-7",
        "-0x1.994062p-13",
    ),  # fit error 2^-26.75
    cos=_hex(
        "0x1.55554ap-5",
        "-0x1.6c0c28p-10",
        "0x1.99e86cp-16",
    ),  # fit error 2^-32.82
    atan=_hex(
        "-0x1.55554ap-2",
        "0x1.9991e2p-3",
        "-0x1.23b9a2p-3",
        "0x1.b22452p-4",
        "-0x1.f2e56ep-5",
    ),  # fit error 2^-30.42
)

DOUBLE = Format(
    mantissa=52,
    bias=1023,
    magic=6755399441055744.0,
    inverse_ln2=float.fromhex("0x1.71547652b82fep+0"),
    ln2=_hex2("0x1.62e42fefa39efp-1", "0x1.abc9e3b39803fp-56"),
    two_over_pi=float.fromhex("0x1.45f306dc9c883p-1"),
    half_pi=_hex("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110"),
    root_half=0x3FE6A09E667F3BCD,
    exp_safe=708.0,
    exp_range=(-746.0, 710.0),
    gelu_end=10.8,
    tanh_end=19.5,
    erf_end=5.95,
    trig_safe=1048576.0,
    smallest=float.fromhex("0x1p-1022"),
    exp=_hex(
        "0x1.0000000000009p-1",
        "0x1.5555555555558p-3",
        "0x1.55555555503ap-5",
        "0x1.111111110f7efp-7",
        "0x1.6c16c18611db9p-10",
        "0x1.a01a01b015fc1p-13",
        "0x1.a019938664e2bp-16",
        "0x1.71ddf69834cdap-19",
        "0x1.28b43b4f111dbp-22",
        "0x1.af635f16ead2dp-26",
    ),  # fit error 2^-56.46
    exp_tiny=_hex(
        "0x1.000000000010bp-1",
        "0x1.5555555555131p-3",
        "0x1.555555480ec67p-5",
        "0x1.11111125d902cp-7",
        "0x1.6c1cbd7e67d2ep-10",
        "0x1.a01639a17c8b1p-13",
    ),  # fit error 2^-58.29
    roots=_hex(
        "0x1p+0",
        "0x1.172b83c7d517bp+0",
        "0x1.306fe0a31b715p+0",
        "0x1.4bfdad5362a27p+0",
        "0x1.6a09e667f3bcdp+0",
        "0x1.8ace5422aa0dbp+0",
        "0x1.ae89f995ad3adp+0",
        "0x1.d5818dcfba487p+0",
    ),
    expm1=_hex(
        "0x1.0000000000009p-1",
        "0x1.5555555555558p-3",
        "0x1.55555555503ap-5",
        "0x1.111111110f7efp-7",
        "0x1.6c16c18611db9p-10",
        "0x1.a01a01b015fc1p-13",
        "0x1.a019938664e2bp-16",
        "0x1.71ddf69834cdap-19",
        "0x1.28b43b4f111dbp-22",
        "0x1.af635f16ead2dp-26",
    ),  # fit error 2^-54.53
    log=_hex(
        "0x1.5555555555593p-1",
        "0x1.999999997fc5bp-2",
        "0x1.2492494207876p-2",
        "0x1.c71c51f4bd3b5p-3",
        "0x1.7466439dce663p-3",
        "0x1.39a13570e60f8p-3",
        "0x1.2f0b1457374e1p-3",
    ),  # fit error 2^-58.86
    erf=_hex(
        "0x1.20dd750429b6dp+0",
        "0x1.45f306dc9c8d9p-1",
        "0x1.a4f4e2a1a9b24p-4",
        "-0x1.396685908c7b6p-6",
        "-0x1.b6b6a1cef92f5p-13",
        "0x1.bca691e397c18p-10",
        "-0x1.35663c02d4e88p-11",
        "0x1.b29b05d099609p-16",
        "0x1.0e32ee08cd983p-14",
        "-0x1.f03258ad0d269p-16",
        "0x1.a96b1e0b7db39p-19",
        "0x1.a481f109281d9p-19",
        "-0x1.116f3363cef7p-19",
        "0x1.3260ada6edbecp-21",
        "-0x1.9316c03448cf6p-27",
        "-0x1.1a470cbecec5cp-24",
        "0x1.290c47815a26ep-25",
        "-0x1.72216b92a4636p-27",
        "0x1.44643becd9f2dp-29",
        "-0x1.9d724292a21b2p-32",
        "0x1.7a5725251ee38p-35",
        "-0x1.d96c1d77b670ap-39",
        "0x1.6b9412522ee7bp-43",
        "-0x1.02cc712b03b49p-48",
    ),  # fit error 2^-54.90
    gelu=_hex(
        "-0x1.26aec21bce72dp+0",
        "-0x1.d63ed74998167p-2",
        "-0x1.ad6f35dd36c27p-5",
        "0x1.c4242c7dc4fe1p-8",
        "0x1.bf8e1f30620a8p-15",
        "-0x1.40c037c623bdfp-12",
        "0x1.3baaa9a2cd7b6p-14",
        "-0x1.3be258a3142dbp-19",
        "-0x1.11ccc61d05002p-18",
        "0x1.5d32a8d950e0cp-20",
        "-0x1.30ae9f85967f8p-24",
        "-0x1.8dd57d5636c49p-24",
        "0x1.84edbf8a13573p-25",
        "-0x1.a9e0775c562a6p-27",
        "0x1.3ecd784bdfa18p-29",
        "-0x1.447b372f69e0ep-32",
        "0x1.6d112f5676d7fp-36",
        "0x1.23eb77a52b0a3p-41",
        "-0x1.772bfc7274f02p-42",
        "0x1.82e9170e9430dp-45",
        "-0x1.b79109f64a386p-49",
        "0x1.1859b05b8aae8p-53",
        "-0x1.3bedc371bad75p-59",
    ),  # fit error 2^-55.64 of P
    sin=_hex(
        "-0x1.5555555555548p-3",
        "0x1.111111110f78ep-7",
        "-0x1.a01a019bf5665p-13",
        "0x1.71de35602d14dp-19",
        "-0x1.ae5e5465519bap-26",
        "0x1.5d8dfaac2f81p-33",
    ),  # fit error 2^-56.85
    cos=_hex(
        "0x1.555555555554bp-5",
        "-0x1.6c16c16c14f47p-10",
        "0x1.a01a019c7cdfbp-16",
        "-0x1.27e4f7e54205bp-22",
        "0x1.1ee9d3decd0fap-29",
        "-0x1.8fa291f5bab9bp-37",
    ),  # fit error 2^-59.14
    atan=_hex(
        "-0x1.555555555553ap-2",
        "0x1.99999999951d7p-3",
        "-0x1.2492492284d94p-3",
        "0x1.c71c70d68c0bfp-4",
        "-0x1.745cf7279f844p-4",
        "0x1.3b10fb6c63274p-4",
        "-0x1.10ea6e72faf50p-4",
        "0x1.defcf9f108b28p-5",
        "-0x1.9c821dc1390e7p-5",
        "0x1.370d8bc5cfe09p-5",
        "-0x1.23be24529c0abp-6",
    ),  # fit error 2^-59.28
)

EXP_BESIDE_EIGHTHS = _hex(
    "0x1p-1",
    "0x1.555c7p-3",
    "0x1.5556bap-5",
)  # of f32 as Format.exp_tiny, for abs(r) <= ln(2)/16; fit error 2^-32.44
EXP_BESIDE_QUARTERS = _hex(
    "0x1.000006p-1",
    "0x1.557248p-3",
    "0x1.5530d4p-5",
)  # the same for abs(r) <= ln(2)/8; fit error 2^-27.43
EXP2_BESIDE_EIGHTHS = _hex(
    "0x1.62e43p-1",
    "0x1.ec0c1ep-3",
    "0x1.c6b1aep-5",
)  # (2^r - 1)/r of f32, abs(r) <= 1/16; fit error 2^-25.2
LOG2_OF_DOUBLE = _hex(
    "0x1.71547652a1e7dp+0",
    "-0x1.715476565d0c3p-1",
    "0x1.ec709ebba2c6cp-2",
    "-0x1.71547097466c7p-2",
    "0x1.277651f8b64c4p-2",
    "-0x1.ec72b5cc9a9a7p-3",
    "0x1.a63f452e37757p-3",
    "-0x1.71416c253b491p-3",
    "0x1.45290c42224dbp-3",
    "-0x1.252f5fc738dd7p-3",
    "0x1.28724918b4597p-3",
    "-0x1.24888a83dfca2p-3",
    "0x1.3ce6a65c4e95p-4",
)  # fit error 2^-35.84
EXP2_OF_DOUBLE = _hex(
    "0x1.000000026107dp+0",
    "0x1.62e430c7f30b9p-1",
    "0x1.ebfbdadd4eed8p-3",
    "0x1.c6aed4b03ecb3p-5",
    "0x1.3b2dbb732ef47p-7",
    "0x1.5f456e166abf5p-10",
    "0x1.41d35d4237cc7p-13",
)  # fit error 2^-29.00


def format_of(type_: Type) -> Format:
    """Of the type's elements."""
    return SINGLE if type_.element == "float" else DOUBLE
