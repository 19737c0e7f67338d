//! A web server that has one answer: the file that an instance is to download.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::thread;

/// Serves `body` on loopback for as long as the test's process lives; the address.
pub fn serve(body: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let head = BufReader::new(stream.try_clone().unwrap()).lines();
            let _ = head.map_while(Result::ok).take_while(|line| !line.is_empty()).count();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            // A client that goes away early is the client's affair.
            let _ = stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    address
}

/// An address where nobody listens.
pub fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
