//! stub until merged
use super::RejectReason;
use crate::units::LaneToken;
pub struct LaneRequest {
    pub token: LaneToken,
    pub responder_depth: u8,
}
pub struct LaneReply {
    pub responder_depth: u8,
}
pub struct LaneReject {
    pub reason: RejectReason,
}
impl LaneRequest {
    pub fn encode(&self) -> [u8; 32] {
        let mut b = [0; 32];
        b[..4].copy_from_slice(b"KAEL");
        b[4] = 1;
        b[5] = self.responder_depth;
        b[8..24].copy_from_slice(&self.token.0);
        b
    }
    pub fn decode(b: &[u8]) -> Result<Self, ()> {
        if b.len() < 24 || &b[..4] != b"KAEL" {
            return Err(());
        }
        let mut t = [0; 16];
        t.copy_from_slice(&b[8..24]);
        Ok(Self { token: LaneToken(t), responder_depth: b[5] })
    }
}
impl LaneReply {
    pub fn encode(&self) -> [u8; 8] {
        [b'K', b'A', b'E', b'L', 1, self.responder_depth, 0, 0]
    }
    pub fn decode(b: &[u8]) -> Result<Self, ()> {
        if b.len() < 8 || &b[..4] != b"KAEL" {
            return Err(());
        }
        Ok(Self { responder_depth: b[5] })
    }
}
impl LaneReject {
    pub fn encode(&self) -> [u8; 8] {
        [b'K', b'A', b'E', b'L', 1, self.reason as u8, 0, 0]
    }
    pub fn decode(b: &[u8]) -> Result<Self, ()> {
        if b.len() < 8 || &b[..4] != b"KAEL" {
            return Err(());
        }
        Ok(Self { reason: RejectReason::from_wire(b[5]) })
    }
}
