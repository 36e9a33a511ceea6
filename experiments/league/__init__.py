"""Every model beside rivals, peers and real records, on tables, baskets and pictures."""
