//! What the packet path is compared with: programs of `cargo xtask bench
//! packet`, in an object of their own that no package contains.
//!
//! * `empty` and `mac_swap`: what any XDP program costs.
//! * `hash` and `lru`: balancers on the kernel's hash maps, written to be
//!   fast. They do for a packet of a known flow what Steerline does, byte for
//!   byte, and count it as Steerline does, but track nothing: no state, no
//!   idle times, no teardown ([`balance`]). `forget_hash` and `forget_lru`
//!   remove the flow of a packet, outside of what is timed.
//! * `restore…`: a test run repeats a program on one buffer, so these write
//!   the next flow's frame into it, then jump to the program that is measured.
//!   Their cost is measured with `empty` behind them, and subtracted.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod balance;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod packet;

#[cfg(target_arch = "bpf")]
mod entry {
    //! The programs, their licence, and the panic handler. All are `frags`, as
    //! Steerline's are: a table of tail calls takes programs of one kind.

    use crate::{balance, maps, packet};
    use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};

    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

    #[xdp(frags)]
    fn empty(_: XdpContext) -> u32 {
        xdp_action::XDP_PASS
    }

    #[xdp(frags)]
    fn mac_swap(ctx: XdpContext) -> u32 {
        packet::swap_macs(&ctx)
    }

    #[xdp(frags)]
    fn hash(ctx: XdpContext) -> u32 {
        balance::run::<maps::Hash>(&ctx)
    }

    #[xdp(frags)]
    fn lru(ctx: XdpContext) -> u32 {
        balance::run::<maps::Lru>(&ctx)
    }

    #[xdp(frags)]
    fn forget_hash(ctx: XdpContext) -> u32 {
        balance::forget::<maps::Hash>(&ctx)
    }

    #[xdp(frags)]
    fn forget_lru(ctx: XdpContext) -> u32 {
        balance::forget::<maps::Lru>(&ctx)
    }

    /// Defines the program that restores frames of one shape.
    macro_rules! restore {
        ($name:ident, $shape:ident) => {
            #[xdp(frags)]
            fn $name(ctx: XdpContext) -> u32 {
                let Some((plan, client)) = maps::next() else {
                    return xdp_action::XDP_ABORTED;
                };
                if !packet::$shape(&ctx, &plan.frame, client) {
                    return xdp_action::XDP_ABORTED;
                }
                maps::jump(&ctx);
                // Nobody sits in the table.
                xdp_action::XDP_ABORTED
            }
        };
    }
    restore!(restore4_to_server, restore4_to_server);
    restore!(restore4_to_client, restore4_to_client);
    restore!(restore6_to_server, restore6_to_server);
    restore!(restore6_to_client, restore6_to_client);

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        // As in the packet path: nothing here panics.
        loop {}
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
