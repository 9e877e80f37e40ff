//! Steerline's packet path: one XDP program.
//!
//! A frame goes through the stages in the order that [`pipeline`] gives them:
//! classify, parse, find, and on a miss look up the service, select a backend
//! and open the flow; then rewrite and emit. What is not ours is passed
//! untouched. All decisions are in `lb-common`, which the host tests run; this
//! crate binds them to packets ([`packet`]), maps ([`maps`]) and clocks.
//!
//! On the host the crate is an empty `main`, so that the whole workspace can
//! be checked and linted without a BPF toolchain.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[cfg(target_arch = "bpf")]
mod clock;
#[cfg(target_arch = "bpf")]
mod family;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod packet;
#[cfg(target_arch = "bpf")]
mod pipeline;
#[cfg(target_arch = "bpf")]
mod stages;

#[cfg(target_arch = "bpf")]
mod entry {
    //! The program, its licence, and the panic handler that the compiler asks
    //! for.

    use crate::packet::{V4, V6};
    use aya_ebpf::{macros::xdp, programs::XdpContext};

    /// Needed by the FIB helpers, which are for GPL-compatible programs.
    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

    /// `frags`: also attaches where the MTU is larger than a page.
    #[xdp(frags)]
    fn steerline(ctx: XdpContext) -> u32 {
        crate::pipeline::run(&ctx)
    }

    /// Jumped to by `steerline` for IPv4 packets of no known flow.
    #[xdp(frags)]
    fn steerline_new4(ctx: XdpContext) -> u32 {
        crate::pipeline::new_flow::<V4>(&ctx)
    }

    /// Jumped to by `steerline` for IPv6 packets.
    #[xdp(frags)]
    fn steerline_ipv6(ctx: XdpContext) -> u32 {
        crate::pipeline::run_ipv6(&ctx)
    }

    /// Jumped to by `steerline_ipv6` for packets of no known flow.
    #[xdp(frags)]
    fn steerline_new6(ctx: XdpContext) -> u32 {
        crate::pipeline::new_flow::<V6>(&ctx)
    }

    /// Jumped to for IPv4 packets that are answered.
    #[xdp(frags)]
    fn steerline_answer4(ctx: XdpContext) -> u32 {
        crate::pipeline::answer::<V4>(&ctx)
    }

    /// The same for IPv6.
    #[xdp(frags)]
    fn steerline_answer6(ctx: XdpContext) -> u32 {
        crate::pipeline::answer::<V6>(&ctx)
    }

    /// Jumped to for ICMP.
    #[xdp(frags)]
    fn steerline_icmp4(ctx: XdpContext) -> u32 {
        crate::pipeline::icmp::<V4>(&ctx)
    }

    /// Jumped to for ICMPv6.
    #[xdp(frags)]
    fn steerline_icmp6(ctx: XdpContext) -> u32 {
        crate::pipeline::icmp::<V6>(&ctx)
    }

    /// Jumped to for IPv4 fragments.
    #[xdp(frags)]
    fn steerline_fragment4(ctx: XdpContext) -> u32 {
        crate::pipeline::fragment::<V4>(&ctx)
    }

    /// Jumped to for IPv6 fragments.
    #[xdp(frags)]
    fn steerline_fragment6(ctx: XdpContext) -> u32 {
        crate::pipeline::fragment::<V6>(&ctx)
    }

    /// Never attached: a daemon runs it to learn how jiffies and nanoseconds
    /// relate.
    #[xdp(frags)]
    fn steerline_clock(_: XdpContext) -> u32 {
        crate::pipeline::read_clocks()
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        // Nothing here panics: no indexing that the compiler cannot prove, no
        // arithmetic checks in release builds. The verifier refuses the loop.
        loop {}
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
