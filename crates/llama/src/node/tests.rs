//! Nodes: their layout, chains, slack, and what their headers say.

use super::*;

#[test]
fn a_base_keeps_payload_descriptor_and_adoptions() {
    for payload in [0, 1, 7, 8, 9, 4000] {
        for key in [0, 1, 13] {
            let bytes: Vec<u8> = (0..payload).map(|byte| byte as u8).collect();
            let low_key = vec![b'k'; key];
            let descriptor = PageDescriptor { tree: 9, low_key: &low_key, root: key == 0 };
            let adopts = [PageId(3), PageId(u64::MAX)];
            let disowns = [PageId(5), PageId(6), PageId(7)];
            let node = OwnedNode::heir(&bytes, descriptor, &adopts[..key.min(2)], &disowns[..payload % 4]);
            assert_eq!(node.as_ref().disowns(), &disowns[..payload % 4]);
            assert_eq!(node.as_ref().payload(), bytes);
            assert_eq!(node.as_ref().payload().as_ptr() as usize % NODE_ALIGN, 0);
            assert_eq!(node.as_ref().descriptor(), Some(descriptor));
            assert_eq!(node.as_ref().adopts(), &adopts[..key.min(2)]);
            assert_eq!(node.as_ref().chain_has_kin(), key > 0 || payload % 4 > 0);
        }
    }
}

#[test]
fn deltas_lie_in_the_slack_until_it_is_used_up() {
    let descriptor = PageDescriptor { tree: 9, low_key: b"low", root: false };
    let base = OwnedNode::base_with_slack(b"base", descriptor, &[PageId(3)], 300);
    let memory = base.as_ref().chain_memory();
    let mut nodes = vec![base];
    for number in 0..3u8 {
        let head = nodes[nodes.len() - 1].as_ref();
        // SAFETY: the base is dropped last.
        let near = unsafe { OwnedNode::delta_in_slack(5 + usize::from(number), head) };
        let mut delta = near.expect("there is room for three");
        assert!(delta.payload_mut().iter().all(|&byte| byte == 0));
        delta.payload_mut().fill(number);
        delta.link(head);
        nodes.push(delta);
    }
    let head = nodes[3].as_ref();
    // SAFETY: as above.
    assert!(unsafe { OwnedNode::delta_in_slack(100, head) }.is_none());
    assert_eq!((head.chain_length(), head.delta_bytes(), head.chain_memory()), (3, 18, memory));
    assert!(head.is_near() && head.chain_has_kin());
    assert!(nodes.iter().all(|node| node.as_ref().base().unwrap().as_ptr() == nodes[0].as_ref().as_ptr()));
    for (number, pair) in nodes.windows(2).enumerate() {
        let (below, node) = (pair[0].as_ref(), pair[1].as_ref());
        assert_eq!(node.payload(), vec![number as u8; 5 + number]);
        assert_eq!(node.as_ptr().addr() + 48, below.as_ptr().addr());
    }
    // The place before a node is given out once, also if nothing came to lie there.
    for node in &nodes[..3] {
        // SAFETY: as above.
        assert!(unsafe { OwnedNode::delta_in_slack(1, node.as_ref()) }.is_none());
    }
    let base = nodes[0].as_ref();
    assert_eq!((base.payload(), base.descriptor(), base.delta_bytes()), (&b"base"[..], Some(descriptor), 0));
    // A copy with other kin keeps the slack, unused.
    let copy = OwnedNode::base_with_slack(b"base", descriptor, &[PageId(3)], 200).with_kin(&[PageId(2)], &[]);
    assert_eq!(copy.as_ref().adopts(), [PageId(2), PageId(3)]);
    assert_eq!(copy.as_ref().slack_bytes(), 128);
    while nodes.pop().is_some() {}
}

#[test]
fn the_head_counts_what_is_below() {
    let below = FlashAddress::new(4096, 64);
    let mut first = OwnedNode::delta(b"one");
    first.link_to_flash(below);
    let mut second = OwnedNode::delta(b"three");
    second.link(first.as_ref());
    let head = second.as_ref();
    assert_eq!((head.chain_length(), head.delta_bytes(), head.is_partial()), (2, 8, true));
    assert!(head.base().is_none());
    assert_eq!((head.next_on_flash(), head.flash_below()), (None, None));
    let last = head.next().unwrap();
    assert!(last.next().is_none());
    assert_eq!((last.next_on_flash(), last.flash_below()), (Some(below), Some(below)));
    let newer = FlashAddress::new(8192, 64);
    last.set_flash(newer);
    assert_eq!(head.flash_below(), Some(newer));
    let own: usize = [second.as_ref(), first.as_ref()].map(|node| charge(node.layout())).iter().sum();
    assert_eq!(head.chain_memory(), own);
    second.unlink();
    assert!(second.as_ref().next().is_none() && second.as_ref().flash_below().is_none());
}

#[test]
fn a_node_that_nobody_publishes_is_freed_with_what_it_holds() {
    deuteron_fuzz::Meter::begin();
    // Too large for a slot, so that the allocator sees it.
    let large = vec![7; 50_000];
    for _ in 0..20 {
        let mut delta = OwnedNode::delta(&large);
        let base = OwnedNode::delta(b"below");
        delta.link(base.as_ref());
        delta.unlink();
        drop(delta);
        // SAFETY: not published.
        drop(unsafe { OwnedNode::from_raw(OwnedNode::delta(&large).into_raw()) });
    }
    assert!(deuteron_fuzz::Meter::peak() < 4 * large.len());
}

#[test]
fn a_head_has_its_second_chance_while_new_or_touched_until_it_is_taken() {
    let delta = OwnedNode::delta(b"delta");
    let node = delta.as_ref();
    assert!(!node.is_touched());
    assert!(node.take_referenced() && !node.take_referenced());
    node.touch();
    node.touch();
    assert!(node.is_touched() && node.take_referenced());
    assert!(!node.is_touched() && !node.take_referenced());
}

#[test]
fn each_kind_is_known_by_what_it_has() {
    let descriptor = PageDescriptor { tree: 3, low_key: b"low", root: true };
    let nodes = [
        (OwnedNode::base(b"base", descriptor, &[]), NodeKind::Base, Some(descriptor)),
        (OwnedNode::delta(b"delta"), NodeKind::Delta, None),
        (OwnedNode::seal(), NodeKind::Seal, None),
    ];
    for (node, kind, descriptor) in &nodes {
        let node = node.as_ref();
        assert_eq!((node.kind(), node.descriptor(), node.flash()), (*kind, *descriptor, None));
        assert_eq!((node.is_sealed(), node.is_partial()), (*kind == NodeKind::Seal, false));
        assert!(node.next().is_none() && !node.is_near() && !node.chain_has_kin());
        assert_eq!(node.chain_length(), usize::from(*kind == NodeKind::Delta));
        assert_eq!(node.delta_bytes(), if *kind == NodeKind::Delta { 5 } else { 0 });
        assert_eq!(node.chain_memory(), charge(node.layout()));
        assert!(format!("{node:?}").contains(&format!("{kind:?}")));
    }
    assert!(format!("{:?}", nodes[1].0).contains("Delta"));
    // A seal is no delta, and closes what is below.
    let [(base, ..), (delta, ..), (seal, ..)] = nodes;
    let (mut delta, mut seal) = (delta, seal);
    delta.link(base.as_ref());
    seal.link(delta.as_ref());
    assert_eq!((seal.as_ref().chain_length(), seal.as_ref().delta_bytes()), (1, 5));
    seal.unlink();
    delta.unlink();
}

#[test]
fn slack_is_what_was_asked_for_in_pieces_of_128_and_1920_at_most() {
    let descriptor = PageDescriptor { tree: 3, low_key: b"low", root: true };
    for (asked, given) in [(0, 0), (127, 0), (128, 128), (1000, 896), (1920, 1920), (5000, 1920)] {
        let base = OwnedNode::base_with_slack(b"base", descriptor, &[], asked);
        assert_eq!(base.as_ref().slack_bytes(), given);
        // Each delta of a byte takes 48 bytes.
        let mut nodes = vec![base];
        loop {
            // SAFETY: the base is dropped last.
            let delta = unsafe { OwnedNode::delta_in_slack(1, nodes[nodes.len() - 1].as_ref()) };
            let Some(mut delta) = delta else { break };
            delta.link(nodes[nodes.len() - 1].as_ref());
            assert!(delta.as_ref().is_near() && 48 * nodes.len() <= given);
            assert_eq!(delta.as_ref().as_ptr().addr() + 48 * nodes.len(), nodes[0].as_ref().as_ptr().addr());
            nodes.push(delta);
        }
        let taken = 48 * (nodes.len() - 1);
        while nodes.pop().is_some() {}
        assert!(given - taken < 48);
    }
}
