//! The rounds of SHA-256 and SHA-512 with AVX-512, one message per lane: the two differ only in word size and
//! distances.
//!
//! In assembly only for the order of instructions. The same rounds from intrinsics, as the compiler orders them, take
//! 20 % longer on Zen 4: the core assigns each instruction to a pipe on arrival, only two of the four vector pipes can
//! rotate, and a rotate queued after an addition loses time. The order below was found by search (random moves that
//! keep the dependencies, the fastest survive): 865 cycles for 64 rounds of 16 lanes, where 1616 instructions at two a
//! cycle need 808 at least.

/// One round, and before it, if `scheduled`, the message word for this round and the one of 16 rounds later.
/// Registers: `s` the working variables by role, `w` the 16 message words, `t` free.
macro_rules! sha2_round {
    (@size ($r:literal $bytes:literal $q:literal $size:literal $($rest:tt)*)) => { $size };
    (@register ($r:literal $($rest:tt)*)) => { $r };
    (@bytes ($r:literal $bytes:literal $($rest:tt)*)) => { $bytes };
    (scheduled ($r:literal $bytes:literal $q:literal $size:literal $bcst:literal
            [$e1:literal $e2:literal $e3:literal] [$a1:literal $a2:literal $a3:literal]
            [$x1:literal $x2:literal $x3:literal] [$y1:literal $y2:literal $y3:literal])
     $i:literal: $a:literal $b:literal $c:literal $d:literal $e:literal $f:literal $g:literal $h:literal,
     $w:literal $w1:literal $w9:literal $w14:literal) => {
        concat!(
            "vmovdqa64 ", $r, "24, ", $r, $e, "\n",
            "vpror", $q, " ", $r, "25, ", $r, $w1, ", ", $y2, "\n",
            "vpror", $q, " ", $r, "26, ", $r, $w14, ", ", $x1, "\n",
            "vpsrl", $q, " ", $r, "27, ", $r, $w1, ", ", $y3, "\n",
            "vpror", $q, " ", $r, "28, ", $r, $w14, ", ", $x2, "\n",
            "vpsrl", $q, " ", $r, "29, ", $r, $w14, ", ", $x3, "\n",
            "vpternlog", $q, " ", $r, "26, ", $r, "28, ", $r, "29, 0x96\n",
            "vpadd", $q, " ", $r, $w, ", ", $r, $w, ", ", $r, $w9, "\n",
            "vpror", $q, " ", $r, "30, ", $r, $e, ", ", $e2, "\n",
            "vpadd", $q, " ", $r, $w, ", ", $r, $w, ", ", $r, "26\n",
            "vpror", $q, " ", $r, "31, ", $r, $w1, ", ", $y1, "\n",
            "vpternlog", $q, " ", $r, "31, ", $r, "25, ", $r, "27, 0x96\n",
            "vpadd", $q, " ", $r, $w, ", ", $r, $w, ", ", $r, "31\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", [{k} + ", $size, "*", $i, "]", $bcst, "\n",
            "vpror", $q, " ", $r, "28, ", $r, $e, ", ", $e1, "\n",
            "vpror", $q, " ", $r, "29, ", $r, $e, ", ", $e3, "\n",
            "vpternlog", $q, " ", $r, "28, ", $r, "30, ", $r, "29, 0x96\n",
            "vpternlog", $q, " ", $r, "24, ", $r, $f, ", ", $r, $g, ", 0xca\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, $w, "\n",
            "vmovdqa64 ", $r, "26, ", $r, $a, "\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, "24\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, "28\n",
            "vpternlog", $q, " ", $r, "26, ", $r, $b, ", ", $r, $c, ", 0xe8\n",
            "vpror", $q, " ", $r, "25, ", $r, $a, ", ", $a2, "\n",
            "vpror", $q, " ", $r, "27, ", $r, $a, ", ", $a1, "\n",
            "vpadd", $q, " ", $r, $d, ", ", $r, $d, ", ", $r, $h, "\n",
            "vpror", $q, " ", $r, "31, ", $r, $a, ", ", $a3, "\n",
            "vpternlog", $q, " ", $r, "27, ", $r, "25, ", $r, "31, 0x96\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, "26\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, "27\n",
        )
    };
    (plain ($r:literal $bytes:literal $q:literal $size:literal $bcst:literal
            [$e1:literal $e2:literal $e3:literal] [$a1:literal $a2:literal $a3:literal] $x:tt $y:tt)
     $i:literal: $a:literal $b:literal $c:literal $d:literal $e:literal $f:literal $g:literal $h:literal,
     $w:literal $w1:literal $w9:literal $w14:literal) => {
        concat!(
            "vmovdqa64 ", $r, "24, ", $r, $e, "\n",
            "vpror", $q, " ", $r, "30, ", $r, $e, ", ", $e2, "\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", [{k} + ", $size, "*", $i, "]", $bcst, "\n",
            "vpror", $q, " ", $r, "28, ", $r, $e, ", ", $e1, "\n",
            "vpror", $q, " ", $r, "29, ", $r, $e, ", ", $e3, "\n",
            "vpternlog", $q, " ", $r, "28, ", $r, "30, ", $r, "29, 0x96\n",
            "vpternlog", $q, " ", $r, "24, ", $r, $f, ", ", $r, $g, ", 0xca\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, $w, "\n",
            "vmovdqa64 ", $r, "26, ", $r, $a, "\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, "24\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, "28\n",
            "vpternlog", $q, " ", $r, "26, ", $r, $b, ", ", $r, $c, ", 0xe8\n",
            "vpror", $q, " ", $r, "25, ", $r, $a, ", ", $a2, "\n",
            "vpror", $q, " ", $r, "27, ", $r, $a, ", ", $a1, "\n",
            "vpadd", $q, " ", $r, $d, ", ", $r, $d, ", ", $r, $h, "\n",
            "vpror", $q, " ", $r, "31, ", $r, $a, ", ", $a3, "\n",
            "vpternlog", $q, " ", $r, "27, ", $r, "25, ", $r, "31, 0x96\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, "26\n",
            "vpadd", $q, " ", $r, $h, ", ", $r, $h, ", ", $r, "27\n",
        )
    };
}
pub(crate) use sha2_round;

/// For [`sha2_rounds`]: nothing to do between the rounds.
macro_rules! nothing {
    ($i:literal) => {
        ""
    };
}
pub(crate) use nothing;

/// All rounds of one block, in place on the working variables `$s`; `$again` times 16 rounds follow the first 16. The
/// registers of the working variables and those that are clobbered come first; `$w` points at the message words (an
/// array of registers in memory), `$k` at the round constants, and `$c` holds the differences between the two hashes:
/// register name and size, lane suffix, word size, broadcast, and the distances of the four sums (FIPS 180-4, 4.1.2 and
/// 4.1.3). `$between!(i)` is placed after round `i` of the first 16, with `$extra` as its operands; it may use
/// registers 24 to 31 and, as the words have been loaded, overwrite them.
macro_rules! sha2_rounds {
    ([$s0:tt $s1:tt $s2:tt $s3:tt $s4:tt $s5:tt $s6:tt $s7:tt] [$($clobbered:tt)*], $c:tt, $s:ident, $w:expr, $k:expr, $again:literal,
     $between:ident $({$($extra:tt)*})?) => {
        core::arch::asm!(
            concat!("vmovdqu64 ", sha2_round!(@register $c), "0, [{m} + 0*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "1, [{m} + 1*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "2, [{m} + 2*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "3, [{m} + 3*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "4, [{m} + 4*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "5, [{m} + 5*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "6, [{m} + 6*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "7, [{m} + 7*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "8, [{m} + 8*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "9, [{m} + 9*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "10, [{m} + 10*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "11, [{m} + 11*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "12, [{m} + 12*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "13, [{m} + 13*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "14, [{m} + 14*", sha2_round!(@bytes $c), "]"),
            concat!("vmovdqu64 ", sha2_round!(@register $c), "15, [{m} + 15*", sha2_round!(@bytes $c), "]"),
            sha2_round!(plain $c 0: 16 17 18 19 20 21 22 23, 0 1 9 14), $between!(0),
            sha2_round!(plain $c 1: 23 16 17 18 19 20 21 22, 1 2 10 15), $between!(1),
            sha2_round!(plain $c 2: 22 23 16 17 18 19 20 21, 2 3 11 0), $between!(2),
            sha2_round!(plain $c 3: 21 22 23 16 17 18 19 20, 3 4 12 1), $between!(3),
            sha2_round!(plain $c 4: 20 21 22 23 16 17 18 19, 4 5 13 2), $between!(4),
            sha2_round!(plain $c 5: 19 20 21 22 23 16 17 18, 5 6 14 3), $between!(5),
            sha2_round!(plain $c 6: 18 19 20 21 22 23 16 17, 6 7 15 4), $between!(6),
            sha2_round!(plain $c 7: 17 18 19 20 21 22 23 16, 7 8 0 5), $between!(7),
            sha2_round!(plain $c 8: 16 17 18 19 20 21 22 23, 8 9 1 6), $between!(8),
            sha2_round!(plain $c 9: 23 16 17 18 19 20 21 22, 9 10 2 7), $between!(9),
            sha2_round!(plain $c 10: 22 23 16 17 18 19 20 21, 10 11 3 8), $between!(10),
            sha2_round!(plain $c 11: 21 22 23 16 17 18 19 20, 11 12 4 9), $between!(11),
            sha2_round!(plain $c 12: 20 21 22 23 16 17 18 19, 12 13 5 10), $between!(12),
            sha2_round!(plain $c 13: 19 20 21 22 23 16 17 18, 13 14 6 11), $between!(13),
            sha2_round!(plain $c 14: 18 19 20 21 22 23 16 17, 14 15 7 12), $between!(14),
            sha2_round!(plain $c 15: 17 18 19 20 21 22 23 16, 15 0 8 13), $between!(15),
            concat!("mov {n:e}, ", $again),
            "2:",
            concat!("add {k}, 16 * ", sha2_round!(@size $c)),
            sha2_round!(scheduled $c 0: 16 17 18 19 20 21 22 23, 0 1 9 14),
            sha2_round!(scheduled $c 1: 23 16 17 18 19 20 21 22, 1 2 10 15),
            sha2_round!(scheduled $c 2: 22 23 16 17 18 19 20 21, 2 3 11 0),
            sha2_round!(scheduled $c 3: 21 22 23 16 17 18 19 20, 3 4 12 1),
            sha2_round!(scheduled $c 4: 20 21 22 23 16 17 18 19, 4 5 13 2),
            sha2_round!(scheduled $c 5: 19 20 21 22 23 16 17 18, 5 6 14 3),
            sha2_round!(scheduled $c 6: 18 19 20 21 22 23 16 17, 6 7 15 4),
            sha2_round!(scheduled $c 7: 17 18 19 20 21 22 23 16, 7 8 0 5),
            sha2_round!(scheduled $c 8: 16 17 18 19 20 21 22 23, 8 9 1 6),
            sha2_round!(scheduled $c 9: 23 16 17 18 19 20 21 22, 9 10 2 7),
            sha2_round!(scheduled $c 10: 22 23 16 17 18 19 20 21, 10 11 3 8),
            sha2_round!(scheduled $c 11: 21 22 23 16 17 18 19 20, 11 12 4 9),
            sha2_round!(scheduled $c 12: 20 21 22 23 16 17 18 19, 12 13 5 10),
            sha2_round!(scheduled $c 13: 19 20 21 22 23 16 17 18, 13 14 6 11),
            sha2_round!(scheduled $c 14: 18 19 20 21 22 23 16 17, 14 15 7 12),
            sha2_round!(scheduled $c 15: 17 18 19 20 21 22 23 16, 15 0 8 13),
            "dec {n:e}",
            "jnz 2b",
            m = in(reg) $w,
            k = inout(reg) $k => _,
            n = out(reg) _,
            $($($extra)*)?
            inout($s0) $s[0], inout($s1) $s[1], inout($s2) $s[2], inout($s3) $s[3],
            inout($s4) $s[4], inout($s5) $s[5], inout($s6) $s[6], inout($s7) $s[7],
            $(out($clobbered) _,)*
            options(nostack),
        )
    };
}
pub(crate) use sha2_rounds;

/// [`sha2_rounds`] in 512-bit registers.
macro_rules! sha2_rounds_512 {
    (($($c:tt)*), $s:ident, $w:expr, $k:expr, $again:literal, $between:ident $($extra:tt)?) => {
        sha2_rounds!(["zmm16" "zmm17" "zmm18" "zmm19" "zmm20" "zmm21" "zmm22" "zmm23"]
            ["zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10" "zmm11" "zmm12" "zmm13"
             "zmm14" "zmm15" "zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm29" "zmm30" "zmm31"],
            ("zmm" "64" $($c)*), $s, $w, $k, $again, $between $($extra)?)
    };
}
pub(crate) use sha2_rounds_512;

/// [`sha2_rounds`] in 256-bit registers.
macro_rules! sha2_rounds_256 {
    (($($c:tt)*), $s:ident, $w:expr, $k:expr, $again:literal, $between:ident $($extra:tt)?) => {
        sha2_rounds!(["ymm16" "ymm17" "ymm18" "ymm19" "ymm20" "ymm21" "ymm22" "ymm23"]
            ["ymm0" "ymm1" "ymm2" "ymm3" "ymm4" "ymm5" "ymm6" "ymm7" "ymm8" "ymm9" "ymm10" "ymm11" "ymm12" "ymm13"
             "ymm14" "ymm15" "ymm24" "ymm25" "ymm26" "ymm27" "ymm28" "ymm29" "ymm30" "ymm31"],
            ("ymm" "32" $($c)*), $s, $w, $k, $again, $between $($extra)?)
    };
}
pub(crate) use sha2_rounds_256;
