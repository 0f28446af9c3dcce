//! A UDP socket that answers from the address that was asked.
//!
//! A socket on the wildcard address would let the kernel choose the answer's source by route, and a client (or the
//! node's own address translation) that asked another address of the node would not know the answer as one. So each
//! question comes with its destination (`IP_PKTINFO`), and its answer goes out from there.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// The socket.
pub(crate) struct Datagram(UdpSocket);

/// The two ends of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Who asked.
    pub peer: SocketAddr,
    /// Which address was asked, if the kernel said.
    pub own: Option<IpAddr>,
}

impl Datagram {
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address).await?;
        if address.is_ipv6() {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        Ok(Self(socket))
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The next packet; what is longer than `buffer` is cut.
    pub(crate) async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Ends)> {
        let read = || {
            let mut space = nix::cmsg_space!(libc::in6_pktinfo);
            let mut parts = [IoSliceMut::new(buffer)];
            let fd = self.0.as_raw_fd();
            let message =
                recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut space), MsgFlags::empty())?;
            let peer = message.address.as_ref().and_then(socket_address);
            let peer = peer.ok_or(io::ErrorKind::InvalidData)?;
            let own = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    Some(IpAddr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()))
                }
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    Some(IpAddr::from(info.ipi6_addr.s6_addr))
                }
                _ => None,
            });
            Ok((message.bytes, Ends { peer, own }))
        };
        self.0.async_io(Interest::READABLE, read).await
    }

    /// Answers.
    pub(crate) async fn send(&self, bytes: &[u8], ends: Ends) -> io::Result<()> {
        let peer = SockaddrStorage::from(ends.peer);
        let parts = [IoSlice::new(bytes)];
        let write = |control: &[ControlMessage<'_>]| {
            let fd = self.0.as_raw_fd();
            sendmsg(fd, &parts, control, MsgFlags::empty(), Some(&peer))?;
            Ok(())
        };
        let write = || match ends.own {
            Some(IpAddr::V4(own)) => {
                let own = libc::in_addr {
                    s_addr: u32::from_ne_bytes(own.octets()),
                };
                let any = libc::in_addr { s_addr: 0 };
                let info = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: own,
                    ipi_addr: any,
                };
                write(&[ControlMessage::Ipv4PacketInfo(&info)])
            }
            Some(IpAddr::V6(own)) => {
                let own = libc::in6_addr {
                    s6_addr: own.octets(),
                };
                let info = libc::in6_pktinfo {
                    ipi6_addr: own,
                    ipi6_ifindex: 0,
                };
                write(&[ControlMessage::Ipv6PacketInfo(&info)])
            }
            None => write(&[]),
        };
        self.0.async_io(Interest::WRITABLE, write).await
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    // With its scope, without which a link-local peer cannot be answered.
    address
        .as_sockaddr_in6()
        .map(|v6| SocketAddr::V6((*v6).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(listen: &str, ask: &str) {
        let Ok(server) = Datagram::bind(listen.parse().unwrap()).await else {
            println!("skipped: no {listen} here");
            return;
        };
        let port = server.local_addr().unwrap().port();
        let asked: IpAddr = ask.parse().unwrap();
        let client = UdpSocket::bind(listen).await.unwrap();
        // A connected socket takes answers from the address asked alone.
        client.connect((asked, port)).await.unwrap();
        client.send(b"question").await.unwrap();
        let mut buffer = [0; 64];
        let (count, ends) = server.receive(&mut buffer).await.unwrap();
        assert_eq!(
            (&buffer[..count], ends.own),
            (&b"question"[..], Some(asked))
        );
        server.send(b"answer", ends).await.unwrap();
        let count = client.recv(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..count], b"answer");
    }

    #[tokio::test]
    async fn an_answer_comes_from_the_address_asked() {
        check("0.0.0.0:0", "127.0.0.1").await;
        check("0.0.0.0:0", "127.0.0.53").await;
        check("[::]:0", "::1").await;
    }
}
