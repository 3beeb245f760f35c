//! How much memory can still be had: of the machine, and of each memory group that this process is
//! in.

use crate::doctor;

/// What may be taken of all of them, if memory grows by `growth` bytes more until the next poll. 0
/// where nothing is known.
pub fn after(growth: u64) -> u64 {
    let machine = doctor::machine_room();
    let groups = doctor::group_rooms();
    machine.map_or(0, |machine| {
        groups.iter().chain([&machine]).map(|room| room.after(growth)).min().unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_has_less_room_for_more() {
        assert!(super::after(1 << 60) == 0 && super::after(0) >= super::after(1 << 30));
        let machine = crate::doctor::machine_room().unwrap();
        assert!(machine.available > 0 && machine.available <= machine.total);
    }
}
