//! Finds the next hop, writes the frame and sends it.

use crate::{
    family::Family,
    maps,
    packet::{self, GROUP_BIT, Ip, Macs, Translation, Transport},
};
use aya_ebpf::{
    bindings::{bpf_fib_lookup as FibLookup, xdp_action},
    helpers::generated::{bpf_fib_lookup, bpf_redirect},
    programs::XdpContext,
};
use core::mem::offset_of;
use lb_common::{
    abi::{Address, Backend, Hop, HopKey, Settings, halves6, hop_flags},
    flow::{self, Found, meta},
    hash,
    reason::Reason,
};

/// Answers of `bpf_fib_lookup` (include/uapi/linux/bpf.h).
const FIB_SUCCESS: i64 = 0;
const FIB_NO_NEIGHBOUR: i64 = 7;
const FIB_FRAGMENTATION_NEEDED: i64 = 8;

/// A way out.
pub(crate) struct Exit {
    ifindex: u32,
    macs: Macs,
}

/// Sends a translated packet to a backend.
#[inline(always)]
pub(crate) fn to_server<F: Family>(
    ctx: &XdpContext,
    backend: u16,
    ip: &Ip<F>,
    translation: &Translation<F>,
) -> Result<u32, Reason> {
    let backend = maps::backend(backend).ok_or(Reason::Internal)?;
    let exit = reach(backend.hop, ip, 0)?.ok_or(Reason::NeighbourUnresolved)?;
    packet::translate(ctx, ip, translation)?;
    send(ctx, backend, ip, &exit)
}

/// Sends a packet as it is to a backend that answers directly, in a packet of its
/// own where the service's tunnel wants it. `client`: the flow's client word.
#[inline(always)]
pub(crate) fn direct<F: Family>(
    ctx: &XdpContext,
    settings: &Settings,
    backend: u16,
    client: u64,
    ip: &Ip<F>,
) -> Result<u32, Reason> {
    let backend = maps::backend(backend).ok_or(Reason::Internal)?;
    let overhead = packet::overhead(backend);
    let exit = reach(backend.hop, ip, overhead)?.ok_or(Reason::NeighbourUnresolved)?;
    if overhead == 0 {
        return send(ctx, backend, ip, &exit);
    }
    if halves6(backend.tunnel_source)[0] == 0 {
        // The route that tells our end has not been found yet.
        return Err(Reason::NeighbourUnresolved);
    }
    let scratch = maps::scratch().ok_or(Reason::Internal)?;
    let hash = hash::mix(client, settings.hash_secret);
    packet::outer(&mut scratch.outer, backend, ip, hash, &exit.macs);
    packet::encapsulate(ctx)?;
    maps::count_traffic(backend.service, ip.total_length as u64);
    leave(ctx, exit.ifindex)
}

/// Sends a server's packet to the client of its flow.
#[inline(always)]
pub(crate) fn to_client<F: Family>(
    ctx: &XdpContext,
    settings: &'static Settings,
    found: &Found,
    ip: &Ip<F>,
    transport: &Transport,
    translation: &Translation<F>,
) -> Result<u32, Reason> {
    let backend = maps::backend(found.backend()).ok_or(Reason::Internal)?;
    let exit = way_to_client(ctx, settings, found, ip, transport, translation)?;
    packet::translate(ctx, ip, translation)?;
    send(ctx, backend, ip, &exit)
}

/// The way to a backend.
#[inline(always)]
pub(crate) fn way_to_server<F: Family>(backend: &Backend, ip: &Ip<F>) -> Result<Exit, Reason> {
    reach(backend.hop, ip, 0)?.ok_or(Reason::NeighbourUnresolved)
}

/// The way to the client of a flow.
#[inline(always)]
pub(crate) fn way_to_client<F: Family>(
    ctx: &XdpContext,
    settings: &'static Settings,
    found: &Found,
    ip: &Ip<F>,
    transport: &Transport,
    translation: &Translation<F>,
) -> Result<Exit, Reason> {
    if let Some(exit) = reach(meta::hop(found.meta) as u32, ip, 0)? {
        return Ok(exit);
    }
    let (exit, index) = resolve(ctx, settings, found, ip, transport, translation)?;
    if index != 0 {
        flow::note_hop(&F::flows(settings), found, index as u16);
    }
    Ok(exit)
}

/// Sends what is written.
#[inline(always)]
pub(crate) fn send<F: Family>(
    ctx: &XdpContext,
    backend: &Backend,
    ip: &Ip<F>,
    exit: &Exit,
) -> Result<u32, Reason> {
    packet::address(ctx, &exit.macs)?;
    maps::count_traffic(backend.service, ip.total_length as u64);
    leave(ctx, exit.ifindex)
}

/// Sends the frame out.
#[inline(always)]
fn leave(ctx: &XdpContext, ifindex: u32) -> Result<u32, Reason> {
    if ifindex == ctx.ingress_ifindex() as u32 {
        return Ok(xdp_action::XDP_TX);
    }
    // SAFETY: a helper with plain arguments.
    Ok(unsafe { bpf_redirect(ifindex, 0) } as u32)
}

/// The next hop at an index, if it is resolved, for a packet that gets `overhead`
/// bytes more. Index 0 is none.
#[inline(always)]
fn reach<F: Family>(index: u32, ip: &Ip<F>, overhead: u32) -> Result<Option<Exit>, Reason> {
    if index == 0 {
        return Ok(None);
    }
    let Some(hop) = maps::hop(index) else {
        return Ok(None);
    };
    if hop.flags & hop_flags::VALID == 0 {
        return Ok(None);
    }
    if hop.mtu != 0 && ip.total_length + overhead > hop.mtu {
        maps::note_mtu(hop.mtu.saturating_sub(overhead));
        return Err(Reason::TooBig);
    }
    Ok(Some(Exit {
        ifindex: hop.ifindex,
        macs: macs(hop),
    }))
}

/// The addresses of a hop, by words.
#[inline(always)]
fn macs(hop: &Hop) -> Macs {
    const _: () = assert!(
        offset_of!(Hop, source) == offset_of!(Hop, destination) + 6
            && offset_of!(Hop, destination) % align_of::<Macs>() == 0
    );
    // SAFETY: the two arrays follow one another and begin at a word, and bytes of
    // any kind are addresses.
    unsafe { (&raw const hop.destination).cast::<Macs>().read() }
}

/// Asks the kernel for the way to a client: its routes and neighbours.
#[inline(always)]
fn resolve<F: Family>(
    ctx: &XdpContext,
    settings: &'static Settings,
    found: &Found,
    ip: &Ip<F>,
    transport: &Transport,
    translation: &Translation<F>,
) -> Result<(Exit, u32), Reason> {
    let fib = &mut maps::scratch().ok_or(Reason::Internal)?.fib;
    // SAFETY: all-zero is a value of this struct of integers.
    *fib = unsafe { core::mem::zeroed() };
    fib.family = F::SOCKETS;
    fib.l4_protocol = ip.protocol;
    fib.sport = translation.port.to_be();
    // Where the packet goes: after the rewrite.
    let (target, port) = if translation.both {
        (translation.other_address, translation.other_port)
    } else {
        (ip.destination, transport.destination_port)
    };
    fib.dport = port.to_be();
    fib.ifindex = ctx.ingress_ifindex() as u32;
    fib.__bindgen_anon_1.tot_len = ip.total_length as u16;
    F::ask(fib, translation.address, target, ip.tos);
    // SAFETY: the parameters are ours and of the stated size.
    let answer = unsafe {
        bpf_fib_lookup(
            ctx.ctx.cast(),
            core::ptr::from_mut(fib),
            size_of::<FibLookup>() as i32,
            0,
        )
    };
    // On success and without a neighbour the kernel left the next hop's address.
    let key = HopKey {
        address: F::answered(fib),
        ifindex: fib.ifindex,
        family: F::NUMBER as u32,
    };
    match answer {
        FIB_SUCCESS => {
            let index = match maps::hop_index(&key) {
                Some(index) => index,
                None => {
                    maps::want_hop(&key);
                    0
                }
            };
            let macs = Macs {
                destination: fib.dmac,
                source: fib.smac,
            };
            Ok((
                Exit {
                    ifindex: fib.ifindex,
                    macs,
                },
                index,
            ))
        }
        FIB_NO_NEIGHBOUR => {
            maps::want_hop(&key);
            // A client on our own segment: its SYN told its MAC address, as an
            // ARP request would have. XDP took the SYN before the kernel could
            // learn from it, and the reply must not wait for a second SYN-ACK.
            let table = F::flows(settings);
            let (_, cold) =
                flow::at(&table, found.slot, found.client).ok_or(Reason::NeighbourUnresolved)?;
            let (client, own) = (cold.client_mac.load(), cold.own_mac.load());
            let on_link =
                is_same(&key.address, &F::key(target)) && cold.client_ifindex.load() == fib.ifindex;
            if !on_link || client & GROUP_BIT != 0 || own & GROUP_BIT != 0 {
                return Err(Reason::NeighbourUnresolved);
            }
            let macs = Macs {
                destination: packet::mac_bytes(client),
                source: packet::mac_bytes(own),
            };
            Ok((
                Exit {
                    ifindex: fib.ifindex,
                    macs,
                },
                0,
            ))
        }
        FIB_FRAGMENTATION_NEEDED => {
            // SAFETY: every bit pattern is a number; the kernel has put the MTU in
            // place of the length.
            maps::note_mtu(unsafe { fib.__bindgen_anon_1.mtu_result } as u32);
            Err(Reason::TooBig)
        }
        _ => Err(Reason::NoRoute),
    }
}

/// Whether two addresses are one. (Comparing arrays would call `memcmp`.)
#[inline(always)]
fn is_same(one: &Address, other: &Address) -> bool {
    let (one, other) = (halves6(*one), halves6(*other));
    one[0] == other[0] && one[1] == other[1]
}
